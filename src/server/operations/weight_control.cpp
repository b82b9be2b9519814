#include "server/operations/weight_control.h"

#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "server/echo.h"
#include "server/field_reader.h"
#include "server/generation_fields.h"

namespace baleen::server {
namespace {

std::optional<std::string> read_version(FieldReader& fields, std::string_view name) {
  std::optional<std::string> version = fields.string(name);
  if (version && !is_request_id(*version)) {
    fields.fail(name, "must be 1 to 256 printable ASCII characters without spaces");
  }
  return version;
}

/// Both parts where no tags are named.
engine::MemoryParts read_tags(FieldReader& fields) {
  const auto tags = fields.string_list("tags");
  if (!tags) {
    return {.cache = true, .weights = true};
  }
  engine::MemoryParts parts;
  for (size_t i = 0; i < tags->size(); ++i) {
    const std::string& tag = (*tags)[i];
    if (tag == "kv_cache") {
      parts.cache = true;
    } else if (tag == "weights") {
      parts.weights = true;
    } else if (tag != "cuda_graph") {  // this engine keeps none
      fields.fail(
          element_path("tags", i),
          fmt::format("must be kv_cache, weights or cuda_graph, is \"{}\"", shortened(tag)));
    }
  }
  return parts;
}

Result<json::object> done(const Status& status, const char* message) {
  if (!status.ok()) {
    return status;
  }
  return json::object{{"success", true}, {"message", message}};
}

}  // namespace

Result<json::object> update_weights_from_disk(const json::object& body, engine::Engine& engine) {
  Status status;
  FieldReader fields(body, "", status);
  engine::WeightUpdate update;
  fields.require("model_path");
  update.folder = fields.string("model_path").value_or("");
  if (const auto format = fields.string("load_format");
      format && *format != "auto" && *format != "safetensors") {
    fields.fail(
        "load_format",
        fmt::format("\"{}\" is not supported; accepted: auto, safetensors", shortened(*format)));
  }
  update.version = read_version(fields, "weight_version");
  update.abort_requests = fields.boolean("abort_all_requests").value_or(false);
  update.flush_cache = fields.boolean("flush_cache").value_or(true);
  update.keep_paused = fields.boolean("keep_pause").value_or(false);
  fields.only("is_async", false);
  fields.boolean("torch_empty_cache");
  fields.boolean("recapture_cuda_graph");
  fields.integer("token_step");
  fields.finish();
  if (!status.ok()) {
    return status;
  }
  status = engine.update_weights(update);
  if (!status.ok()) {
    if (status.code == StatusCode::kInvalidArgument && status.param.empty()) {
      status.param = "model_path";
    }
    return status;
  }
  const engine::EngineStats stats = engine.stats();
  return json::object{
      {"success", true},
      {"message", "the weights are replaced"},
      {"num_paused_requests", stats.is_paused ? stats.num_running + stats.num_waiting : 0}};
}

Result<json::object> update_weight_version(const json::object& body, engine::Engine& engine) {
  Status status;
  FieldReader fields(body, "", status);
  fields.require("new_version");
  const std::string version = read_version(fields, "new_version").value_or("");
  const bool aborts = fields.boolean("abort_all_requests").value_or(true);
  fields.finish();
  if (status.ok()) {
    status = engine.name_weights(version, aborts);
  }
  if (!status.ok()) {
    return status;
  }
  return json::object{{"success", true}, {"new_version", version}};
}

Result<json::object> release_memory(const json::object& body, engine::Engine& engine) {
  Status status;
  FieldReader fields(body, "", status);
  const engine::MemoryParts parts = read_tags(fields);
  fields.finish();
  return done(status.ok() ? engine.release_memory(parts) : status, "the memory is released");
}

Result<json::object> resume_memory(const json::object& body, engine::Engine& engine) {
  Status status;
  FieldReader fields(body, "", status);
  const engine::MemoryParts parts = read_tags(fields);
  fields.finish();
  return done(status.ok() ? engine.resume_memory(parts) : status, "the memory is there again");
}

}  // namespace baleen::server
