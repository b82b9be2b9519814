#include "engine/engine_view.h"

#include <future>
#include <memory>
#include <utility>

#include "engine/engine_state.h"

namespace baleen::engine {

Result<EngineView> Engine::look(const EngineLook& what, std::chrono::milliseconds timeout) {
  State& s = *state_;
  const auto view = std::make_shared<EngineView>();  // with the order, which may outlive this call
  std::future<Status> done;
  {
    std::lock_guard lock(s.mutex);
    if (s.stats.state != EngineState::kRunning && s.stats.state != EngineState::kDraining) {
      return engine_unavailable("the engine does not run");
    }
    const auto work = [view, what, &metrics = s.metrics](EngineCore& core) {
      view->prefilled_tokens = static_cast<int64_t>(metrics.prompt_tokens.value());
      view->step_s = core.step_s();
      if (const cache::SequenceCache* cache = core.cache()) {
        view->pools = cache::pool_fills(*cache);
        if (what.tree) {
          view->tree = cache::view_tree(*cache, *what.tree);
        }
      }
      return Status();
    };
    s.orders.push_back({work, {}});
    done = s.orders.back().done.get_future();
    s.wake.notify_one();
  }
  if (done.wait_for(timeout) != std::future_status::ready) {
    return engine_unavailable("the engine is busy with a step");
  }
  try {
    if (Status status = done.get(); !status.ok()) {
      return status;
    }
  } catch (const std::future_error&) {  // it stopped or failed before it came to this
    return engine_unavailable("the engine does not run");
  }
  return std::move(*view);
}

}  // namespace baleen::engine
