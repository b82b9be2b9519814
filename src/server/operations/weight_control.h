#pragma once
// Bodies of the paths that change the weights and the memory of a running engine. Any thread;
// blocks until the change is made, which for weights takes as long as reading them.
//
//   Result<json::object> answer = update_weights_from_disk(body, engine);

#include <boost/json/object.hpp>

#include "base/result.h"
#include "engine/engine.h"

namespace baleen::server {

namespace json = boost::json;

/// {"model_path", "weight_version", "abort_all_requests", "flush_cache", "keep_pause"}.
Result<json::object> update_weights_from_disk(const json::object& body, engine::Engine& engine);
/// {"new_version", "abort_all_requests"}, default true: names the weights that are there.
Result<json::object> update_weight_version(const json::object& body, engine::Engine& engine);
/// {"tags": ["kv_cache", "weights", "cuda_graph"]}, default all.
Result<json::object> release_memory(const json::object& body, engine::Engine& engine);
Result<json::object> resume_memory(const json::object& body, engine::Engine& engine);

}  // namespace baleen::server
