#include "server/native/native_request.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "engine/request_limits.h"
#include "server/echo.h"
#include "server/generation_fields.h"
#include "server/json_input.h"
#include "server/structured/answer_grammar.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

constexpr int64_t kNativeMaxTokens = 128;

/// The fields that are one value, or in a batch a list with one value per prompt.
class BatchFields {
 public:
  BatchFields(FieldReader& fields, size_t num_prompts, bool is_list)
      : fields_(fields), num_prompts_(num_prompts), is_list_(is_list) {}

  /// The value for `prompt` and its path; null: absent.
  std::pair<const json::value*, std::string> of(std::string_view name, size_t prompt) {
    const json::value* value = fields_.value(name);
    if (value == nullptr || !is_list_ || !value->is_array()) {
      return {value, std::string(name)};
    }
    const json::array& list = value->get_array();
    if (list.size() != num_prompts_) {
      fields_.fail(
          name,
          fmt::format("must have one element per prompt, {}, has {}", num_prompts_, list.size()));
      return {nullptr, std::string(name)};
    }
    const json::value& element = list[prompt];
    return {element.is_null() ? nullptr : &element, element_path(name, prompt)};
  }
  /// That value by one of FieldReader's functions.
  template <class Read>
  auto read(std::string_view name, size_t prompt, Read read_one) {
    const auto [value, path] = of(name, prompt);
    const json::object one_field{{path, value != nullptr ? *value : json::value(nullptr)}};
    FieldReader one(one_field, "", fields_.status());
    return read_one(one, path);
  }

  std::optional<int64_t> integer(std::string_view name, size_t prompt, int64_t min, int64_t max) {
    return read(name, prompt, [&](FieldReader& one, const std::string& path) {
      return one.integer(path, min, max);
    });
  }
  std::optional<bool> boolean(std::string_view name, size_t prompt) {
    return read(
        name, prompt, [](FieldReader& one, const std::string& path) { return one.boolean(path); });
  }
  std::optional<std::string> string(std::string_view name, size_t prompt) {
    return read(
        name, prompt, [](FieldReader& one, const std::string& path) { return one.string(path); });
  }

 private:
  FieldReader& fields_;
  const size_t num_prompts_;
  const bool is_list_;
};

struct Prompts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::string> paths;
  bool is_list = false;
};

void read_texts(FieldReader& fields, const text::Tokenizer& tokenizer, Prompts& out) {
  const json::value* value = fields.value("text");
  out.is_list = value->is_array();
  const auto texts = fields.string_list("text");
  for (size_t i = 0; texts && i < texts->size(); ++i) {
    out.ids.push_back(tokenizer.encode((*texts)[i]));
    out.paths.push_back(out.is_list ? element_path("text", i) : "text");
  }
}

void read_ids(FieldReader& fields, int32_t largest, Prompts& out) {
  const json::array* list = fields.array("input_ids");
  if (list == nullptr) {
    return;
  }
  out.is_list = !list->empty() && (*list)[0].is_array();
  if (!out.is_list) {
    if (auto ids = fields.integer_list("input_ids", 0, largest)) {
      out.ids.push_back(std::move(*ids));
      out.paths.emplace_back("input_ids");
    }
    return;
  }
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    const std::string path = element_path("input_ids", i);
    const json::object one{{path, (*list)[i]}};
    FieldReader inner(one, "", fields.status());
    if (auto ids = inner.integer_list(path, 0, largest)) {
      out.ids.push_back(std::move(*ids));
      out.paths.push_back(path);
    }
  }
}

Prompts read_native_prompts(FieldReader& fields, const text::Tokenizer& tokenizer) {
  Prompts prompts;
  const bool has_text = fields.value("text") != nullptr;
  if (has_text == (fields.value("input_ids") != nullptr)) {
    fields.fail(has_text ? "input_ids" : "text", "exactly one of text and input_ids is needed");
    return prompts;
  }
  if (has_text) {
    read_texts(fields, tokenizer, prompts);
  } else {
    read_ids(fields, tokenizer.vocab_size() - 1, prompts);
  }
  if (fields.ok() && prompts.ids.empty()) {
    fields.fail(has_text ? "text" : "input_ids", "must have at least one prompt");
  }
  return prompts;
}

/// sampling_params of one prompt. `max_tokens` is what was asked for, if anything was.
GenerationFields read_sampling_params(const json::object& object,
                                      const std::string& path,
                                      const RequestContext& context,
                                      Status& status,
                                      std::optional<int64_t>& max_tokens) {
  FieldReader fields(object, path, status);
  GenerationFields out;
  engine::GenerationRequest& request = out.request;
  read_sampling_fields(fields, "sampling_seed", request.sampling);
  read_stop_fields(fields, "min_new_tokens", request);
  max_tokens = fields.integer("max_new_tokens", 0, kMaxInt32);
  out.n = static_cast<int32_t>(fields.integer("n", 1, kMaxChoices).value_or(1));
  if (const auto drafts = fields.integer("max_drafts", 0, kMaxInt32)) {
    request.max_drafts = static_cast<int32_t>(*drafts);
  }
  request.output.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  fields.only("spaces_between_special_tokens", true);  // this tokenizer never puts any
  AnswerFormat format;
  read_grammar_fields(fields, true, format);
  fields.not_supported({"stop_regex", "stream_interval", "custom_params"});
  fields.finish();
  if (status.ok()) {
    status = add_grammar(format, context, request);
  }
  return out;
}

void read_logprob_fields(BatchFields& batch,
                         size_t prompt,
                         engine::GenerationRequest& request,
                         NativeChoice& choice) {
  choice.logprobs = batch.boolean("return_logprob", prompt).value_or(false);
  choice.logprob_start = batch.integer("logprob_start_len", prompt, -1, kMaxInt32).value_or(-1);
  const auto top = batch.integer("top_logprobs_num", prompt, 0, engine::kMaxTopLogprobs);
  if (!choice.logprobs) {
    choice.logprob_start = -1;
    return;
  }
  request.want_logprobs = true;
  request.top_logprobs = static_cast<int32_t>(top.value_or(0));
  choice.top_logprobs = request.top_logprobs > 0;
  request.want_prompt_logprobs = choice.logprob_start >= 0;
}

/// The first position of the choices that are asked for; none: the first of all.
std::optional<int64_t> read_choice_fields(FieldReader& fields,
                                          const RequestContext& context,
                                          NativeOptions& native) {
  native.routes = fields.boolean("return_routed_experts").value_or(false);
  native.picks = fields.boolean("return_indexer_topk").value_or(false);
  const auto from = fields.integer("routed_experts_start_len", 0, kMaxInt32);
  const std::string encoding = fields.string("choices_encoding").value_or("int32");
  if (encoding == "coded") {
    native.encoding = ChoiceEncoding::kCoded;
  } else if (encoding != "int32") {
    fields.fail("choices_encoding",
                fmt::format("must be int32 or coded, is \"{}\"", shortened(encoding)));
  }
  native.recorded = context.choices;
  if ((native.routes || native.picks) && !native.recorded) {
    fields.fail(native.routes ? "return_routed_experts" : "return_indexer_topk",
                "is not recorded here: the server must run with --record-choices");
  }
  return from;
}

void refuse_unbuilt(FieldReader& fields) {
  fields.only("return_hidden_states", false);
  fields.only("return_entropy", false);
  fields.only("background", false);
  fields.ignore({"no_logs", "log_metrics"});  // there is no text in our log, and no other metric
  fields.not_supported({"token_ids_logprob",
                        "session_params",
                        "custom_logit_processor",
                        "extra_key",
                        "priority",
                        "routing_key",
                        "data_parallel_rank",
                        "bootstrap_host",
                        "bootstrap_port",
                        "bootstrap_room",
                        "custom_labels",
                        "image_data",
                        "lora_path"});
}

}  // namespace

Result<ApiRequest> read_native_request(const json::object& body, const RequestContext& context) {
  Status status;
  FieldReader fields(body, "", status);
  ApiRequest request;
  request.answer.form = AnswerForm::kNative;
  request.max_tokens_field = "sampling_params.max_new_tokens";
  request.min_tokens_field = "sampling_params.min_new_tokens";
  request.field_prefix = "sampling_params.";
  if (const auto model = fields.string("model")) {
    status = check_model(*model, context.config);
  }
  GenerationFields common;
  common.model = context.config.model_name;
  common.stream = fields.boolean("stream").value_or(false);
  auto native = std::make_shared<NativeOptions>();
  native->arrived = std::chrono::steady_clock::now();
  native->text_in_logprobs = fields.boolean("return_text_in_logprobs").value_or(false);
  const std::optional<int64_t> choices_from = read_choice_fields(fields, context, *native);
  refuse_unbuilt(fields);
  Prompts prompts = read_native_prompts(fields, *context.tokenizer);
  request.prompt_field = fields.value("text") != nullptr ? "text" : "input_ids";
  begin_answer(common, context, request);
  BatchFields batch(fields, prompts.ids.size(), prompts.is_list);
  native->is_list = prompts.is_list;
  for (size_t p = 0; p < prompts.ids.size() && status.ok(); ++p) {
    const auto [params, path] = batch.of("sampling_params", p);
    if (params != nullptr && !params->is_object()) {
      fields.fail(path, fmt::format("must be an object, is {}", json_kind_name(*params)));
      break;
    }
    std::optional<int64_t> max_tokens;
    const json::object none;
    GenerationFields one = read_sampling_params(
        params != nullptr ? params->get_object() : none, path, context, status, max_tokens);
    one.request.output.parse_markup = false;
    NativeChoice choice;
    read_logprob_fields(batch, p, one.request, choice);
    if (const auto rid = batch.string("rid", p)) {
      choice.id = *rid;
      if (!is_request_id(*rid)) {
        fields.fail("rid", "must be 1 to 256 printable ASCII characters without spaces");
      }
    }
    if (!status.ok() || prompts.ids[p].empty()) {
      if (status.ok()) {
        fields.fail(prompts.paths[p], "must have at least one token");
      }
      break;
    }
    one.request.want_routes = native->routes;
    one.request.want_picks = native->picks;
    one.request.choices_from = static_cast<int32_t>(choices_from.value_or(0));
    if (one.request.choices_from > static_cast<int32_t>(prompts.ids[p].size())) {
      fields.fail(
          "routed_experts_start_len",
          fmt::format("lies behind the {} tokens of {}", prompts.ids[p].size(), prompts.paths[p]));
      break;
    }
    if (native->routes) {
      choice.prompt = prompts.ids[p];
    }
    choice.first_prompt_id = prompts.ids[p][0];
    choice.num_prompt_tokens = static_cast<int64_t>(prompts.ids[p].size());
    // As the dialect has it, an answer longer than the context is cut, not refused.
    const int64_t room = context.max_context - static_cast<int64_t>(prompts.ids[p].size());
    const int64_t limit =
        std::min(max_tokens.value_or(kNativeMaxTokens), std::max<int64_t>(room, 1));
    const size_t first = request.choices.size();
    if (status = add_prompt(one,
                            std::move(prompts.ids[p]),
                            prompts.paths[p],
                            max_tokens == 0 ? 0 : limit,
                            limit,
                            context,
                            request);
        !status.ok()) {
      break;
    }
    const std::string rid =
        choice.id.empty() ? fmt::format("{}-{}", request.answer.id, p) : choice.id;
    for (size_t k = first; k < request.choices.size(); ++k) {
      choice.id = one.n == 1 ? rid : fmt::format("{}-{}", rid, k - first);
      request.choices[k].id = choice.id;
      native->choices.push_back(choice);
    }
    native->is_list = native->is_list || one.n > 1;
  }
  fields.finish();
  request.answer.native = std::move(native);
  if (!status.ok()) {
    return status;
  }
  return request;
}

}  // namespace baleen::server
