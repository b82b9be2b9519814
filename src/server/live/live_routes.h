#pragma once
// GET /live, /live/curves and /live/tree. The feed and the engine outlive the router.
//
//   add_live_routes(router, feed, engine, guarded);

#include <functional>

#include "engine/engine.h"
#include "http/message.h"
#include "server/live/live_feed.h"

namespace baleen::server {

/// `guarded` wraps a handler in the check of the key.
void add_live_routes(http::Router& router,
                     LiveFeed& feed,
                     engine::Engine& engine,
                     const std::function<http::Handler(http::Handler)>& guarded);

}  // namespace baleen::server
