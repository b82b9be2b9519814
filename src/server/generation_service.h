#pragma once
// From a request in internal form to the engine: last checks, submission of every choice, and the
// link from the client's leaving to the engine's abort. Owned by the API server; any thread.
//
//   service.answer(std::move(request), std::move(writer));

#include <memory>
#include <optional>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/request_limits.h"
#include "http/response_writer.h"
#include "server/api_request.h"
#include "server/operations/live_requests.h"

namespace baleen::server {

class GenerationService {
 public:
  /// `engine` outlives the service and every answer.
  GenerationService(engine::Engine& engine, std::shared_ptr<const text::Tokenizer> tokenizer);

  /// Answers now with an error, or later from the engine's events.
  void answer(ApiRequest request, http::ResponseWriter writer) const;
  int64_t max_context() const { return limits_.max_context; }
  /// What is recorded of every token's choices.
  const std::optional<cache::ChoiceLayout>& choices() const { return choices_; }
  /// The answers in progress.
  LiveRequests& live() const { return *live_; }

 private:
  engine::Engine& engine_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const engine::RequestLimits limits_;
  const std::optional<cache::ChoiceLayout> choices_;
  const std::shared_ptr<LiveRequests> live_;  // with the answers in progress
};

}  // namespace baleen::server
