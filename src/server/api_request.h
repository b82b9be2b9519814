#pragma once
// The one internal form of every request: what the engine is to do for each choice, and how the
// answer is to look. Made by the dialects' readers, consumed by GenerationService.
//
//   Result<ApiRequest> request = read_completion_request(body, context);

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/choice_layout.h"
#include "engine/request.h"
#include "server/answer_options.h"
#include "server/field_reader.h"
#include "server/generation_fields.h"
#include "server/server_config.h"

namespace baleen::text {
class Tokenizer;
}  // namespace baleen::text

namespace baleen::server {

class AnswerGrammars;

struct ApiRequest {
  AnswerOptions answer;
  std::vector<engine::GenerationRequest> choices;  // index in the answer = index here
  /// What the dialect calls the engine's fields, for errors.
  const char* prompt_field = "prompt";
  bool prompt_is_list = false;  // of prompts, as opposed to one
  const char* max_tokens_field = "max_tokens";
  const char* min_tokens_field = "min_tokens";
  const char* field_prefix = "";  // of the other sampling fields
};

/// What readers need to know of the server.
struct RequestContext {
  const ServerConfig& config;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  int64_t max_context = 0;
  std::string_view body;                     // the request's text
  int64_t created = 0;                       // now, in seconds since 1970
  const AnswerGrammars* grammars = nullptr;  // null: the request is not run, only looked at
  std::shared_ptr<ResponseStore> responses;  // null: none are kept
  std::optional<cache::ChoiceLayout> choices = std::nullopt;  // what the engine records
};

/// Fills what every answer has: its id, time, model and how it is sent.
void begin_answer(const GenerationFields& common,
                  const RequestContext& context,
                  ApiRequest& request);

/// Adds n samples of a prompt to request.choices.
/// `max_tokens`: as asked for; refused with context_length_exceeded when prompt and answer together
/// do not fit. None: `default_max_tokens`, bounded by the context.
Status add_prompt(const GenerationFields& common,
                  std::vector<int32_t> prompt,
                  const std::string& prompt_path,
                  std::optional<int64_t> max_tokens,
                  int64_t default_max_tokens,
                  const RequestContext& context,
                  ApiRequest& request);

/// Both, for one or several prompts that share all fields.
Status expand_choices(GenerationFields common,
                      std::vector<std::vector<int32_t>> prompts,
                      std::optional<int64_t> max_tokens,
                      int64_t default_max_tokens,
                      const RequestContext& context,
                      ApiRequest& request);

/// kNotFound unless the request names the served model.
Status check_model(const std::string& model, const ServerConfig& config);

}  // namespace baleen::server
