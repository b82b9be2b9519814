#include "server/operations/health_probe.h"

#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "engine/collecting_sink.h"
#include "server/answer_json.h"

namespace baleen::server {

HealthProbe::HealthProbe(engine::Engine& engine,
                         int32_t prompt_id,
                         std::chrono::milliseconds timeout)
    : engine_(engine),
      prompt_id_(prompt_id),
      timeout_(timeout),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

void HealthProbe::ask(Reply reply) {
  const std::lock_guard lock(mutex_);
  replies_.push_back(std::move(reply));
  asked_.notify_one();
}

void HealthProbe::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<Reply> replies;
    {
      std::unique_lock lock(mutex_);
      asked_.wait(lock, stop, [&] { return !replies_.empty(); });
      replies.swap(replies_);
    }
    if (replies.empty()) {
      continue;
    }
    const Status status = try_engine(stop);
    for (const Reply& reply : replies) {
      reply(status);
    }
  }
}

Status HealthProbe::try_engine(const std::stop_token& stop) {
  engine::GenerationRequest request;
  request.id = random_id("health-");
  request.prompt = {prompt_id_};
  request.max_new_tokens = 1;
  request.output.parse_markup = false;
  const auto sink = std::make_shared<engine::CollectingSink>();
  const std::string id = request.id;
  const int64_t num_steps = engine_.stats().num_steps;
  const Status submitted = engine_.submit(std::move(request), sink);
  // With a full queue the steps of the others tell as much.
  if (!submitted.ok() && submitted.code != StatusCode::kResourceExhausted) {
    return submitted;
  }
  constexpr std::chrono::milliseconds kSlice{20};
  for (std::chrono::milliseconds waited{0}; waited < timeout_ && !stop.stop_requested();
       waited += kSlice) {
    if (sink->wait_for(kSlice)) {
      const engine::FinishInfo finish = sink->finish();
      if (finish.reason == engine::FinishReason::kError) {
        return {StatusCode::kUnavailable, finish.error.message, {}, {}};
      }
      return {};
    }
    if (engine_.stats().num_steps > num_steps) {
      engine_.abort(id);
      return {};
    }
  }
  engine_.abort(id);
  return {StatusCode::kUnavailable, fmt::format("no token within {} ms", timeout_.count()), {}, {}};
}

}  // namespace baleen::server
