#include "server/completion_request.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "engine/request_limits.h"
#include "server/json_input.h"
#include "server/structured/answer_grammar.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;

/// A string, strings, token ids, or lists of token ids; `is_list` tells several from one.
std::vector<std::vector<int32_t>> read_prompts(FieldReader& fields,
                                               const text::Tokenizer& tokenizer,
                                               bool& is_list) {
  std::vector<std::vector<int32_t>> prompts;
  fields.require("prompt");
  const json::value* value = fields.value("prompt");
  if (value == nullptr) {
    return prompts;
  }
  if (value->is_string()) {
    prompts.push_back(tokenizer.encode(value->get_string()));
    return prompts;
  }
  if (!value->is_array() || value->get_array().empty()) {
    fields.fail("prompt",
                fmt::format("must be a string, a list of strings, token ids or a list of lists of "
                            "token ids, is {}",
                            value->is_array() ? "an empty array" : json_kind_name(*value)));
    return prompts;
  }
  const json::array& list = value->get_array();
  const int32_t largest = tokenizer.vocab_size() - 1;
  if (list[0].is_number()) {
    if (auto ids = fields.integer_list("prompt", 0, largest)) {
      prompts.push_back(std::move(*ids));
    }
    return prompts;
  }
  is_list = true;
  for (size_t i = 0; i < list.size() && fields.ok(); ++i) {
    const std::string name = element_path("prompt", i);
    if (list[i].is_string() && list[0].is_string()) {
      prompts.push_back(tokenizer.encode(list[i].get_string()));
    } else if (list[i].is_array() && list[0].is_array()) {
      const json::object element{{name, list[i]}};
      FieldReader inner(element, "", fields.status());
      if (auto ids = inner.integer_list(name, 0, largest)) {
        prompts.push_back(std::move(*ids));
      }
    } else {
      fields.fail(name,
                  fmt::format("must be {} as the elements before it, is {}",
                              json_kind_name(list[0]),
                              json_kind_name(list[i])));
    }
  }
  return prompts;
}

}  // namespace

Result<ApiRequest> read_completion_request(const json::object& body,
                                           const RequestContext& context) {
  Status status;
  FieldReader fields(body, "", status);
  ApiRequest request;
  request.answer.form = AnswerForm::kCompletion;
  GenerationFields common = read_generation_fields(fields);
  const auto max_tokens = fields.integer("max_tokens", 0, std::numeric_limits<int32_t>::max());
  if (const auto top = fields.integer("logprobs", 0, engine::kMaxTopLogprobs)) {
    common.request.want_logprobs = true;
    common.request.top_logprobs = static_cast<int32_t>(*top);
  }
  common.request.output.parse_markup = false;
  common.request.output.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  request.answer.hides_end_token = !common.request.output.include_stop;
  fields.only("echo", false);
  fields.only("suffix", "");
  if (const auto best_of = fields.integer("best_of", 1, kMaxChoices);
      best_of && *best_of != common.n) {
    fields.fail("best_of", fmt::format("{} is not supported; accepted: n, {}", *best_of, common.n));
  }
  AnswerFormat format;
  read_grammar_fields(fields, true, format);
  if (fields.ok()) {
    status = check_model(common.model, context.config);
  }
  std::vector<std::vector<int32_t>> prompts =
      read_prompts(fields, *context.tokenizer, request.prompt_is_list);
  fields.finish();
  if (status.ok()) {
    status = add_grammar(format, context, common.request);
  }
  if (!status.ok()) {
    return status;
  }
  if (status = expand_choices(
          std::move(common), std::move(prompts), max_tokens, kDefaultMaxTokens, context, request);
      !status.ok()) {
    return status;
  }
  return request;
}

}  // namespace baleen::server
