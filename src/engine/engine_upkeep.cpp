// What changes under a running engine: its weights, and the memory that it holds. Between steps, on
// the engine's thread.
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/engine_state.h"

namespace baleen::engine {
namespace {

Status held_in_place() {
  return Status::invalid(
      "running requests are held in place with what they computed: pause with abort or retract "
      "first");
}

const char* names_of(MemoryParts parts) {
  return parts.cache && parts.weights ? "cache,weights" : parts.cache ? "cache" : "weights";
}

}  // namespace

bool EngineCore::held_requests() const {
  return is_paused_ && scheduler_->num_running() > 0;
}

void EngineCore::go_on() {
  is_paused_ = pause_wanted_ || released_.any();
}

Status EngineCore::resume() {
  if (released_.any()) {
    return Status::invalid(
        fmt::format("memory is released ({}): resume it first", names_of(released_)));
  }
  pause_wanted_ = false;
  go_on();
  return {};
}

Status EngineCore::update_weights(const WeightUpdate& update) {
  if (update.abort_requests) {
    end_all(FinishReason::kAbort, {StatusCode::kCancelled, "the weights were replaced", {}, {}});
  }
  if (update.flush_cache && held_requests()) {
    return held_in_place();
  }
  hold(update.flush_cache ? PauseMode::kRetract : PauseMode::kInPlace);
  Status status = update.source != nullptr ? executor_.update_weights(*update.source)
                                           : executor_.update_weights(update.folder);
  if (!status.ok() && executor_.weights_lost()) {
    released_.weights = true;
    lost_weights_ = "the weights are incomplete until an update succeeds: " + status.message;
    log::error("engine", "weights lost: {}", status.message);
  }
  if (status.ok()) {
    released_.weights = false;
    lost_weights_.clear();
    ++weight_epoch_;
    token_routes_ = executor_.token_routes();
    if (update.flush_cache) {
      flush_cache();
    }
    if (update.version) {
      name_weights(*update.version);
    }
    pause_wanted_ = pause_wanted_ || update.keep_paused;
    // Weights from memory come with every step of a training run: nobody acted, nobody waits.
    const log::Level level = update.source != nullptr ? log::Level::kDebug : log::Level::kInfo;
    if (log::enabled(level)) {
      log::write(level,
                 "engine",
                 fmt::format("weights from={} version={} flushed={} requests={}",
                             update.source != nullptr ? "memory" : update.folder,
                             *weight_version_,
                             update.flush_cache,
                             live_.size()));
    }
  }
  go_on();
  return status;
}

void EngineCore::name_weights(std::string version) {
  weight_version_ = std::make_shared<const std::string>(std::move(version));
}

Status EngineCore::release_memory(MemoryParts parts) {
  const MemoryParts fresh = parts.without(released_);
  if (fresh.cache && held_requests()) {
    return held_in_place();
  }
  hold(fresh.cache ? PauseMode::kRetract : PauseMode::kInPlace);
  if (fresh.cache) {
    flush_cache();
  }
  Status status = fresh.any() ? executor_.release_memory(fresh) : Status();
  if (status.ok() && fresh.any()) {
    released_ = released_.with(fresh);
    log::info("engine", "released memory parts={}", names_of(fresh));
  }
  go_on();
  return status;
}

Status EngineCore::resume_memory(MemoryParts parts) {
  const MemoryParts missing = parts.without(parts.without(released_));
  Status status = missing.any() ? executor_.resume_memory(missing) : Status();
  if (status.ok() && missing.any()) {
    released_ = released_.without(missing);
    if (missing.weights) {
      lost_weights_.clear();
    }
    token_routes_ = executor_.token_routes();
    log::info("engine", "resumed memory parts={}", names_of(missing));
  }
  go_on();
  return status;
}

Status Engine::update_weights(const WeightUpdate& update) {
  return state_->on_engine_thread(
      [&update](EngineCore& core) { return core.update_weights(update); });
}

Status Engine::name_weights(const std::string& version, bool abort_requests) {
  return state_->on_engine_thread([&](EngineCore& core) {
    if (abort_requests) {
      core.end_all(FinishReason::kAbort,
                   {StatusCode::kCancelled, "the weights were renamed", {}, {}});
    }
    core.name_weights(version);
    return Status();
  });
}

Status Engine::release_memory(MemoryParts parts) {
  return state_->on_engine_thread([parts](EngineCore& core) { return core.release_memory(parts); });
}

Status Engine::resume_memory(MemoryParts parts) {
  return state_->on_engine_thread([parts](EngineCore& core) { return core.resume_memory(parts); });
}

}  // namespace baleen::engine
