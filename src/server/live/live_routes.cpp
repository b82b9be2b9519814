#include "server/live/live_routes.h"

#include <charconv>
#include <chrono>
#include <string>
#include <utility>

#include <boost/json/serialize.hpp>
#include <fmt/format.h>

#include "http/response_writer.h"
#include "server/api_error.h"
#include "server/echo.h"
#include "server/live/live_json.h"

namespace baleen::server {
namespace {

/// A handler thread waits for so long; a step that takes longer is not waited for.
constexpr std::chrono::milliseconds kTreePatience{2000};

Result<cache::TreeViewOptions> tree_options(const http::Request& request) {
  cache::TreeViewOptions options;
  for (const auto& [name, value] : request.query) {
    if (name != "root") {
      return Status::invalid(fmt::format("{} is not known here", shortened(name)), shortened(name));
    }
    int32_t page = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), page);
    if (error != std::errc() || end != value.data() + value.size() || page < 0) {
      return Status::invalid(
          fmt::format("root must be the number of a page, is \"{}\"", shortened(value)), "root");
    }
    options.root = cache::FullPage(page);
  }
  return options;
}

http::Response tree_response(const http::Request& request, engine::Engine& engine) {
  const Result<cache::TreeViewOptions> options = tree_options(request);
  if (!options.ok()) {
    return error_response(options.status());
  }
  const Result<engine::EngineView> view = engine.look({.tree = *options}, kTreePatience);
  if (!view.ok()) {
    return error_response(view.status());
  }
  if (view->pools && !view->tree) {
    return error_response(
        {StatusCode::kNotFound,
         fmt::format("page {} is not in the cache any more", options->root.value()),
         "root",
         {}});
  }
  return http::Response::json(200, json::serialize(tree_json(*view)));
}

}  // namespace

void add_live_routes(http::Router& router,
                     LiveFeed& feed,
                     engine::Engine& engine,
                     const std::function<http::Handler(http::Handler)>& guarded) {
  router.add("GET", "/live", guarded([&feed](http::Request&&, http::ResponseWriter writer) {
               feed.add(std::move(writer));
             }));
  router.add(
      "GET", "/live/curves", guarded([&feed](http::Request&&, http::ResponseWriter writer) {
        writer.respond(http::Response::json(200, json::serialize(curves_json(feed.series()))));
      }));
  router.add(
      "GET", "/live/tree", guarded([&engine](http::Request&& request, http::ResponseWriter writer) {
        writer.respond(tree_response(request, engine));
      }));
}

}  // namespace baleen::server
