#pragma once
// What the server says about itself: the model card, /model_info, /server_info and the load. Pure,
// any thread.
//
//   json::object card = model_card(facts);

#include <cstdint>

#include <boost/json/object.hpp>

#include "engine/engine.h"
#include "server/server_config.h"

namespace baleen::server {

namespace json = boost::json;

struct ServerFacts {
  const ServerConfig& config;
  const engine::Engine& engine;
  int64_t max_context = 0;  // tokens
  int64_t created = 0;      // seconds since 1970
};

json::object model_card(const ServerFacts& facts);
json::object model_info(const ServerFacts& facts);
/// Settings, capacity and state. No keys.
json::object server_info(const ServerFacts& facts);
json::object server_load(const ServerFacts& facts);

}  // namespace baleen::server
