#include "server/api_request.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/answer_json.h"
#include "server/echo.h"

namespace baleen::server {

Status check_model(const std::string& model, const ServerConfig& config) {
  if (model == config.model_name) {
    return {};
  }
  return {
      StatusCode::kNotFound,
      fmt::format(
          "model \"{}\" is not served here; served: \"{}\"", shortened(model), config.model_name),
      "model",
      "model_not_found"};
}

Status expand_choices(GenerationFields common,
                      std::vector<std::vector<int32_t>> prompts,
                      std::optional<int64_t> max_tokens,
                      int64_t default_max_tokens,
                      const RequestContext& context,
                      ApiRequest& request) {
  const bool chat = request.answer.form == AnswerForm::kChat;
  request.answer.id = random_id(chat ? "chatcmpl-" : "cmpl-");
  request.answer.created = context.created;
  request.answer.model = common.model;
  request.answer.stream = common.stream;
  request.answer.include_usage = common.include_usage;
  request.answer.continuous_usage = common.continuous_usage;
  request.answer.logprobs = common.request.want_logprobs;
  request.answer.prompt_tokens = 0;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const auto length = static_cast<int64_t>(prompts[p].size());
    const std::string prompt_path =
        request.prompt_is_list ? element_path(request.prompt_field, p) : request.prompt_field;
    if (length == 0) {
      return Status::invalid(fmt::format("{}: must have at least one token", prompt_path),
                             prompt_path);
    }
    const int64_t room = context.max_context - length;
    if (max_tokens.value_or(1) > room && (max_tokens != 0 || room < 0)) {
      return Status::invalid(
          fmt::format("this model's context is {} tokens; {} has {} tokens and {} were asked for "
                      "the answer",
                      context.max_context,
                      prompt_path,
                      length,
                      max_tokens ? fmt::format("{}", *max_tokens) : "at least 1"),
          prompt_path,
          "context_length_exceeded");
    }
    request.answer.prompt_tokens += length;
    for (int32_t k = 0; k < common.n; ++k) {
      engine::GenerationRequest choice = common.request;
      choice.id = fmt::format("{}-{}", request.answer.id, request.choices.size());
      choice.prompt = k + 1 < common.n ? prompts[p] : std::move(prompts[p]);
      choice.max_new_tokens =
          static_cast<int32_t>(max_tokens.value_or(std::min(default_max_tokens, room)));
      choice.sampling.sample_index = k;
      request.choices.push_back(std::move(choice));
    }
  }
  if (request.choices.size() > static_cast<size_t>(kMaxChoices)) {
    return Status::invalid(fmt::format("n times the number of prompts must be at most {}, is {}",
                                       kMaxChoices,
                                       request.choices.size()),
                           "n");
  }
  return {};
}

}  // namespace baleen::server
