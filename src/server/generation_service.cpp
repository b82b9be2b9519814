#include "server/generation_service.h"

#include <utility>

#include "server/answer.h"
#include "server/api_error.h"
#include "server/request_group.h"

namespace baleen::server {
namespace {

engine::RequestLimits limits_of(const engine::Engine& engine) {
  const engine::ExecutorCapacity capacity = engine.stats().capacity;
  return {.max_context = capacity.max_context,
          .vocab_size = capacity.vocab_size,
          .has_reasoning_end = engine.config().reasoning_end_id >= 0};
}

/// The engine's name of a field, as the client knows it.
Status in_dialect(Status status, const ApiRequest& request) {
  if (status.param == "prompt") {
    status.param = request.prompt_field;
  } else if (status.param == "max_new_tokens") {
    status.param = request.max_tokens_field;
  } else if (status.param == "min_new_tokens") {
    status.param = "min_tokens";
  } else if (status.param == "reasoning_budget") {
    status.param = "thinking.budget_tokens";
  }
  return status;
}

}  // namespace

GenerationService::GenerationService(engine::Engine& engine,
                                     std::shared_ptr<const text::Tokenizer> tokenizer)
    : engine_(engine), tokenizer_(std::move(tokenizer)), limits_(limits_of(engine)) {}

void GenerationService::answer(ApiRequest request, http::ResponseWriter writer) const {
  for (const engine::GenerationRequest& choice : request.choices) {
    if (const Status status = engine::check_request(choice, limits_); !status.ok()) {
      writer.respond(error_response(in_dialect(status, request)));
      return;
    }
  }
  const auto group = std::make_shared<RequestGroup>(engine_);
  writer.on_disconnect([group] { group->abort_all(); });
  const auto answer =
      make_answer(request.answer, tokenizer_, request.choices.size(), std::move(writer), [group] {
        group->abort_all();
      });
  for (size_t i = 0; i < request.choices.size(); ++i) {
    const Status status = group->submit(std::move(request.choices[i]), answer_sink(answer, i));
    if (!status.ok()) {
      answer->fail(in_dialect(status, request));
      return;
    }
  }
}

}  // namespace baleen::server
