#include "server/web/web_page.h"

#include <algorithm>
#include <string>
#include <utility>

#include "http/response_writer.h"
#include "server/api_error.h"
#include "server/web/web_files.h"

namespace baleen::server {
namespace {

http::Response web_response(std::string_view type, std::string_view text, const char* cache) {
  http::Response response;
  response.headers = {{"Content-Type", std::string(type)},
                      {"Cache-Control", cache},
                      {"Content-Security-Policy", std::string(web_policy())},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"}};
  response.body = text;
  return response;
}

/// `path`: hash and name.
http::Response web_asset(std::string_view path) {
  const size_t slash = path.find('/');
  if (slash != std::string_view::npos && path.substr(0, slash) == web_hash()) {
    const std::string_view name = path.substr(slash + 1);
    const auto files = web_files();
    const auto file =
        std::find_if(files.begin(), files.end(), [&](const WebFile& f) { return f.name == name; });
    if (file != files.end()) {
      return web_response(file->type, file->text, "public, max-age=31536000, immutable");
    }
  }
  return error_response(
      {StatusCode::kNotFound, "the page has no such file; load it again", {}, {}});
}

}  // namespace

std::string_view web_policy() {
  return "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
         "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
}

void add_web_page(http::Router& router) {
  router.add("GET", "/", [](http::Request&&, http::ResponseWriter writer) {
    writer.respond(web_response("text/html; charset=utf-8", web_index(), "no-cache"));
  });
  router.add_prefix("GET", "/assets/", [](http::Request&& request, http::ResponseWriter writer) {
    writer.respond(web_asset(request.path_parameter));
  });
}

}  // namespace baleen::server
