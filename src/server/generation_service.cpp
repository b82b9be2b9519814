#include "server/generation_service.h"

#include <string_view>
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
          .has_reasoning_end = engine.config().reasoning_end_id >= 0,
          .records_choices = capacity.choices.has_value()};
}

/// What clients may call this answer: its id, and the ids that /generate gives its prompts.
std::vector<std::string> client_ids(const AnswerOptions& options) {
  std::vector<std::string> ids;
  if (!options.id.empty()) {
    ids.push_back(options.id);
  }
  for (size_t i = 0; options.native && i < options.native->choices.size(); ++i) {
    ids.push_back(options.native->choices[i].id);
  }
  return ids;
}

/// The engine's names of fields, as the client knows them.
Status in_dialect(Status status, const ApiRequest& request) {
  const std::pair<std::string_view, std::string_view> names[] = {
      {"max_new_tokens", request.max_tokens_field},
      {"min_new_tokens", request.min_tokens_field},
      {"reasoning_budget", "thinking.budget_tokens"}};
  bool renamed = status.param.empty();
  for (const auto& [engine_name, name] : names) {
    if (status.param == engine_name) {
      status.param = name;
      renamed = true;
    }
    for (size_t at = 0; (at = status.message.find(engine_name, at)) != std::string::npos;
         at += name.size()) {
      status.message.replace(at, engine_name.size(), name);
    }
  }
  if (status.param == "prompt") {
    status.param = request.prompt_field;
  } else if (status.param == "id") {
    status.param = "rid";
  } else if (!renamed) {
    status.param.insert(0, request.field_prefix);
  }
  return status;
}

}  // namespace

GenerationService::GenerationService(engine::Engine& engine,
                                     std::shared_ptr<const text::Tokenizer> tokenizer)
    : engine_(engine),
      tokenizer_(std::move(tokenizer)),
      limits_(limits_of(engine)),
      choices_(engine.stats().capacity.choices),
      live_(std::make_shared<LiveRequests>()) {}

void GenerationService::answer(ApiRequest request, http::ResponseWriter writer) const {
  for (const engine::GenerationRequest& choice : request.choices) {
    if (const Status status = engine::check_request(choice, limits_); !status.ok()) {
      const ErrorForm form =
          request.answer.form == AnswerForm::kMessages ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
      writer.respond(error_response(in_dialect(status, request), form));
      return;
    }
  }
  const auto group = std::make_shared<RequestGroup>(engine_);
  writer.on_disconnect([group] { group->abort_all(); });
  const auto answer = make_answer({.options = request.answer,
                                   .tokenizer = tokenizer_,
                                   .num_choices = request.choices.size(),
                                   .abort_all = [group] { group->abort_all(); },
                                   .held = live_->add(client_ids(request.answer), group)},
                                  std::move(writer));
  for (size_t i = 0; i < request.choices.size(); ++i) {
    const Status status = group->submit(std::move(request.choices[i]), answer_sink(answer, i));
    if (!status.ok()) {
      answer->fail(in_dialect(status, request));
      return;
    }
  }
}

}  // namespace baleen::server
