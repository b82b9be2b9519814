#pragma once
// Requests and responses as plain values, and the route table. Knows no API and no socket.
// Values belong to whoever holds them; a Router is filled before the server starts and only read
// afterwards, from any thread.
//
//   Router router;
//   router.add("GET", "/health", [](Request&&, ResponseWriter writer) {
//     writer.respond(Response::text(200, "ok")); });

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baleen::http {

class ResponseWriter;

/// Header fields in order; names compare without case.
class Headers {
 public:
  using Field = std::pair<std::string, std::string>;
  Headers() = default;
  Headers(std::initializer_list<Field> fields) : fields_(fields) {}
  void add(std::string name, std::string value);
  /// The first value of `name`, or nullptr.
  const std::string* find(std::string_view name) const;
  const std::vector<Field>& fields() const { return fields_; }

 private:
  std::vector<Field> fields_;
};

struct Request {
  std::string method;                                      // "GET", "POST", ...
  std::string path;                                        // percent-decoded, without query
  std::vector<std::pair<std::string, std::string>> query;  // percent-decoded
  std::string path_parameter;                              // rest of the path after a prefix route
  Headers headers;
  std::string body;
  std::string peer;  // address of the client
};

struct Response {
  int status = 200;
  Headers headers;
  std::string body;

  static Response text(int status, std::string body);
  static Response json(int status, std::string body);
  static Response html(int status, std::string body);
};

/// Called on a handler thread, one request of a connection at a time. May answer later and from
/// another thread through the writer.
using Handler = std::function<void(Request&& request, ResponseWriter writer)>;

class Router {
 public:
  /// `path` must match the whole path.
  void add(std::string method, std::string path, Handler handler);
  /// `prefix` ends in a slash; what is between it and `suffix` is not empty and becomes
  /// Request::path_parameter. A path that ends in a suffix is none of the prefix without one.
  void add_prefix(std::string method, std::string prefix, Handler handler, std::string suffix = {});

  struct Match {
    const Handler* handler = nullptr;  // null: not found, or method not allowed
    std::string route;                 // the path or prefix given to add(), for metrics
    std::string parameter;
    std::vector<std::string> allowed_methods;  // of the path, when only the method is wrong
  };
  /// A HEAD request uses the GET route. An exact route wins over a prefix, a longer prefix over a
  /// shorter.
  Match find(std::string_view method, std::string_view path) const;
  /// Method and path of each route; a prefix ends in a slash.
  std::vector<std::pair<std::string, std::string>> routes() const;

 private:
  struct Route {
    std::string method;
    std::string path;
    bool is_prefix = false;
    std::string suffix;
    Handler handler;

    bool hits(std::string_view wanted) const;
  };
  std::vector<Route> routes_;
};

}  // namespace baleen::http
