#pragma once
// A sink that keeps everything until the request has ended, for callers that want the whole answer
// at once. Shared by the engine, which fills it, and one waiting caller.
//
//   auto sink = std::make_shared<CollectingSink>();
//   if (engine.submit(request, sink).ok()) { sink->wait(); use(sink->finish()); }

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"

namespace baleen::engine {

class CollectingSink final : public OutputSink {
 public:
  void on_event(OutputEvent&& event) override;

  void wait();                                    // until the last event
  bool wait_for(std::chrono::milliseconds time);  // false: not ended in that time
  bool wait_for_tokens(size_t count, std::chrono::milliseconds time);
  bool ended() const;

  // Valid in full once ended; before, what has come so far.
  std::vector<GeneratedToken> tokens() const;
  std::vector<int32_t> ids() const;
  std::vector<std::string> weight_versions() const;  // of the weights that drew each token
  std::vector<text::OutputDelta> deltas() const;
  std::string text(text::OutputPart part) const;  // of all deltas of that part
  std::vector<TokenLogprob> prompt_logprobs() const;
  size_t num_events() const;
  /// Only once ended.
  FinishInfo finish() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GeneratedToken> tokens_;
  std::vector<std::string> weight_versions_;  // by token
  std::vector<text::OutputDelta> deltas_;
  std::vector<TokenLogprob> prompt_logprobs_;
  std::optional<FinishInfo> finish_;
  size_t num_events_ = 0;
};

}  // namespace baleen::engine
