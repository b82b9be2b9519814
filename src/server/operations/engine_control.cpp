#include "server/operations/engine_control.h"

#include <fmt/format.h>

#include "server/echo.h"
#include "server/field_reader.h"

namespace baleen::server {
namespace {

Result<json::object> success_or(Status status) {
  if (!status.ok()) {
    return status;
  }
  return json::object{{"success", true}};
}

}  // namespace

Result<json::object> pause_generation(const json::object& body, engine::Engine& engine) {
  Status status;
  FieldReader fields(body, "", status);
  const std::string name = fields.string("mode").value_or("abort");
  engine::PauseMode mode = engine::PauseMode::kAbort;
  if (name == "retract") {
    mode = engine::PauseMode::kRetract;
  } else if (name == "in_place") {
    mode = engine::PauseMode::kInPlace;
  } else if (name != "abort") {
    fields.fail("mode",
                fmt::format("must be abort, retract or in_place, is \"{}\"", shortened(name)));
  }
  fields.finish();
  return success_or(status.ok() ? engine.pause(mode) : status);
}

Result<json::object> continue_generation(const json::object& body, engine::Engine& engine) {
  Status status;
  FieldReader fields(body, "", status);
  fields.boolean("torch_empty_cache");
  fields.finish();
  return success_or(status.ok() ? engine.resume() : status);
}

Result<json::object> flush_cache(const json::object& body, engine::Engine& engine) {
  Status status;
  FieldReader fields(body, "", status);
  fields.finish();
  return success_or(status.ok() ? engine.flush_cache() : status);
}

}  // namespace baleen::server
