#pragma once
// Bodies of the paths that steer the engine: pause, go on, flush. Any thread; pausing blocks until
// it is in effect, at most one step.
//
//   Result<json::object> answer = pause_generation(body, engine);

#include <boost/json/object.hpp>

#include "base/result.h"
#include "engine/engine.h"

namespace baleen::server {

namespace json = boost::json;

/// {"mode": "abort" | "retract" | "in_place"}, default abort.
Result<json::object> pause_generation(const json::object& body, engine::Engine& engine);
/// {}; "torch_empty_cache" has no effect.
Result<json::object> continue_generation(const json::object& body, engine::Engine& engine);
/// {}; refused while requests run.
Result<json::object> flush_cache(const json::object& body, engine::Engine& engine);

}  // namespace baleen::server
