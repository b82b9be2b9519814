#include "http/message.h"

#include <algorithm>

#include "base/check.h"
#include "http/response_writer.h"

namespace baleen::http {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

Response with_type(int status, std::string type, std::string body) {
  Response response;
  response.status = status;
  response.headers.add("Content-Type", std::move(type));
  response.body = std::move(body);
  return response;
}

}  // namespace

void Headers::add(std::string name, std::string value) {
  fields_.emplace_back(std::move(name), std::move(value));
}

const std::string* Headers::find(std::string_view name) const {
  for (const Field& field : fields_) {
    if (equal_without_case(field.first, name)) {
      return &field.second;
    }
  }
  return nullptr;
}

Response Response::text(int status, std::string body) {
  return with_type(status, "text/plain; charset=utf-8", std::move(body));
}

Response Response::json(int status, std::string body) {
  return with_type(status, "application/json", std::move(body));
}

Response Response::html(int status, std::string body) {
  return with_type(status, "text/html; charset=utf-8", std::move(body));
}

void Router::add(std::string method, std::string path, Handler handler) {
  BALEEN_CHECK(path.starts_with('/'), "path={}", path);
  routes_.push_back({std::move(method), std::move(path), false, {}, std::move(handler)});
}

void Router::add_prefix(std::string method,
                        std::string prefix,
                        Handler handler,
                        std::string suffix) {
  BALEEN_CHECK(prefix.starts_with('/') && prefix.ends_with('/'), "prefix={}", prefix);
  routes_.push_back(
      {std::move(method), std::move(prefix), true, std::move(suffix), std::move(handler)});
}

bool Router::Route::hits(std::string_view wanted) const {
  return is_prefix ? wanted.size() > path.size() + suffix.size() && wanted.starts_with(path) &&
                         wanted.ends_with(suffix)
                   : wanted == path;
}

Router::Match Router::find(std::string_view method, std::string_view path) const {
  const std::string_view wanted = method == "HEAD" ? std::string_view("GET") : method;
  Match match;
  const Route* best = nullptr;
  const auto has_suffix = [&](const Route& other, const Route& of) {
    return !other.suffix.empty() && other.path == of.path && other.hits(path);
  };
  for (const Route& route : routes_) {
    if (!route.hits(path)) {
      continue;
    }
    if (route.is_prefix && route.suffix.empty() &&
        std::ranges::any_of(routes_,
                            [&](const Route& other) { return has_suffix(other, route); })) {
      continue;
    }
    match.allowed_methods.push_back(route.method);
    if (route.method != wanted) {
      continue;
    }
    const bool better =
        best == nullptr || (best->is_prefix && !route.is_prefix) ||
        (best->is_prefix == route.is_prefix && route.path.size() > best->path.size());
    if (better) {
      best = &route;
    }
  }
  if (best != nullptr) {
    match.handler = &best->handler;
    match.route = best->path;
    if (best->is_prefix) {
      match.parameter =
          path.substr(best->path.size(), path.size() - best->path.size() - best->suffix.size());
    }
  }
  return match;
}

std::vector<std::pair<std::string, std::string>> Router::routes() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Route& route : routes_) {
    all.emplace_back(route.method, route.path);
  }
  return all;
}

}  // namespace baleen::http
