#include "server/live/live_server.h"

#include <utility>

#include "http/response_writer.h"
#include "server/api_error.h"
#include "server/live/live_feed.h"
#include "server/live/live_routes.h"
#include "server/web/web_page.h"

namespace baleen::server {
namespace {

constexpr std::chrono::milliseconds kLastEvents{1'000};  // that wait in a socket

http::Router live_router(LiveFeed& feed, engine::Engine& engine) {
  http::Router router;
  add_web_page(router);
  add_live_routes(router, feed, engine, [](http::Handler handler) { return handler; });
  router.add("GET", "/v1/models", [](http::Request&&, http::ResponseWriter writer) {
    writer.respond(http::Response::json(200, R"({"object": "list", "data": []})"));
  });
  return router;
}

http::ServerHooks live_hooks() {
  http::ServerHooks hooks;
  hooks.error_page = http_error_page;
  return hooks;
}

}  // namespace

class LiveServer::State {
 public:
  State(http::ServerConfig config, engine::Engine& engine)
      : feed(engine), server(std::move(config), live_router(feed, engine), live_hooks()) {}

  LiveFeed feed;
  http::Server server;
};

LiveServer::LiveServer(http::ServerConfig config, engine::Engine& engine)
    : state_(std::make_unique<State>(std::move(config), engine)) {}

LiveServer::~LiveServer() {
  state_->feed.close();
  state_->server.shutdown(kLastEvents);
}

void LiveServer::start() {
  state_->server.start();
}

std::string LiveServer::url() const {
  return state_->server.url();
}

LiveSeries& LiveServer::series() {
  return state_->feed.series();
}

}  // namespace baleen::server
