#pragma once
// A request between submit and its last event, as the engine's thread holds it.

#include <chrono>
#include <memory>

#include "engine/draft_planner.h"
#include "engine/generation.h"
#include "engine/request.h"
#include "engine/scheduler.h"

namespace baleen::engine {

using EnginePoint = std::chrono::steady_clock::time_point;

inline double seconds_between(EnginePoint from, EnginePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

struct LiveRequest {
  SequenceId sequence;
  Generation generation;
  std::shared_ptr<OutputSink> sink;  // shared with the connection that waits for the events
  EnginePoint arrived;
  EnginePoint last_token;  // valid once a token came
  DraftState drafts{};
  RequestSlot slot{};  // the one that it had last
};

}  // namespace baleen::engine
