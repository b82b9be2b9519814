#include "server/api_request.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/answer_json.h"
#include "server/echo.h"

namespace baleen::server {
namespace {

const char* id_prefix(AnswerForm form) {
  switch (form) {
    case AnswerForm::kChat:
      return "chatcmpl-";
    case AnswerForm::kCompletion:
      return "cmpl-";
    case AnswerForm::kMessages:
      return "msg_";
    case AnswerForm::kNative:
      return "";
    case AnswerForm::kResponses:
      return "resp_";
  }
  return "?";
}

}  // namespace

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

void begin_answer(const GenerationFields& common,
                  const RequestContext& context,
                  ApiRequest& request) {
  AnswerOptions& answer = request.answer;
  answer.id = common.rid.empty() ? random_id(id_prefix(answer.form)) : common.rid;
  answer.created = context.created;
  answer.model = common.model;
  answer.stream = common.stream;
  answer.include_usage = common.include_usage;
  answer.continuous_usage = common.continuous_usage;
  answer.logprobs = common.request.want_logprobs;
  answer.prompt_tokens = 0;
}

Status add_prompt(const GenerationFields& common,
                  std::vector<int32_t> prompt,
                  const std::string& prompt_path,
                  std::optional<int64_t> max_tokens,
                  int64_t default_max_tokens,
                  const RequestContext& context,
                  ApiRequest& request) {
  const auto length = static_cast<int64_t>(prompt.size());
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
  if (request.choices.size() + static_cast<size_t>(common.n) > static_cast<size_t>(kMaxChoices)) {
    return Status::invalid(
        fmt::format("n times the number of prompts must be at most {}", kMaxChoices), "n");
  }
  request.answer.prompt_tokens += length;
  for (int32_t k = 0; k < common.n; ++k) {
    engine::GenerationRequest choice = common.request;
    choice.id = fmt::format("{}-{}", request.answer.id, request.choices.size());
    choice.prompt = k + 1 < common.n ? prompt : std::move(prompt);
    choice.max_new_tokens =
        static_cast<int32_t>(max_tokens.value_or(std::min(default_max_tokens, room)));
    choice.sampling.sample_index = k;
    request.choices.push_back(std::move(choice));
  }
  return {};
}

Status expand_choices(GenerationFields common,
                      std::vector<std::vector<int32_t>> prompts,
                      std::optional<int64_t> max_tokens,
                      int64_t default_max_tokens,
                      const RequestContext& context,
                      ApiRequest& request) {
  begin_answer(common, context, request);
  const size_t num_choices = prompts.size() * static_cast<size_t>(common.n);
  if (num_choices > static_cast<size_t>(kMaxChoices)) {
    return Status::invalid(
        fmt::format(
            "n times the number of prompts must be at most {}, is {}", kMaxChoices, num_choices),
        "n");
  }
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::string path =
        request.prompt_is_list ? element_path(request.prompt_field, p) : request.prompt_field;
    if (Status status = add_prompt(
            common, std::move(prompts[p]), path, max_tokens, default_max_tokens, context, request);
        !status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace baleen::server
