#include "server/structured/answer_grammar.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "server/echo.h"
#include "text/tool_grammar.h"

namespace baleen::server {
namespace {

/// What the request's tools ask of the answer. None: nothing that needs a grammar.
std::optional<text::ToolCallRules> call_rules(const AnswerFormat& format,
                                              const ToolChoice& choice,
                                              const std::vector<text::ToolSpec>& tools) {
  if (tools.empty() || choice.kind == ToolChoice::Kind::kNone) {
    return std::nullopt;
  }
  text::ToolCallRules rules;
  rules.one_call = choice.one_call || choice.kind == ToolChoice::Kind::kNamed;
  rules.must_call = choice.kind != ToolChoice::Kind::kAuto;
  for (const text::ToolSpec& tool : tools) {
    if (choice.kind == ToolChoice::Kind::kNamed && tool.name != choice.name) {
      continue;
    }
    // Where the model is free to call, only strict tools hold it to their schemas.
    const bool constrained = tool.strict || rules.must_call;
    rules.tools.push_back({tool.name, constrained ? tool.parameters_json : "", tool.strict});
  }
  const bool any_strict = std::any_of(
      tools.begin(), tools.end(), [](const text::ToolSpec& tool) { return tool.strict; });
  if (!rules.must_call && !any_strict && !choice.one_call && !format.grammar) {
    return std::nullopt;
  }
  if (!rules.must_call) {
    rules.otherwise = format.grammar;
  }
  return rules;
}

Status blame(Status status, const std::string& field) {
  return Status::invalid(fmt::format("{}: {}", field, shortened(status.message)), field);
}

}  // namespace

AnswerGrammars::AnswerGrammars(const text::Tokenizer& tokenizer,
                               std::vector<int32_t> end_token_ids,
                               int64_t vocab_size,
                               MetricRegistry& registry)
    : compiler_(tokenizer, std::move(end_token_ids), vocab_size),
      num_grammars_(
          registry.counter("sglang:num_grammar_total", "Requests whose answer follows a grammar.")),
      num_refused_(registry.counter("sglang:num_grammar_aborted_total",
                                    "Requests refused because their grammar does not compile.")),
      compilation_time_(registry.histogram("sglang:grammar_compilation_time_seconds",
                                           "From a grammar's text to its automaton.",
                                           {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30})) {}

Result<std::shared_ptr<const text::Grammar>> AnswerGrammars::compile(
    const text::GrammarSpec& spec) const {
  const auto start = std::chrono::steady_clock::now();
  Result<std::shared_ptr<const text::Grammar>> grammar = compiler_.compile(spec);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  compilation_time_.observe(took.count());
  (grammar.ok() ? num_grammars_ : num_refused_).add();
  return grammar;
}

Result<std::shared_ptr<const text::Grammar>> AnswerGrammars::make(
    const AnswerFormat& format,
    const ToolChoice& choice,
    const std::vector<text::ToolSpec>& tools,
    text::ChatProfile profile) const {
  std::optional<text::ToolCallRules> rules = call_rules(format, choice, tools);
  if (!rules) {
    if (!format.grammar) {
      return std::shared_ptr<const text::Grammar>();
    }
    Result<std::shared_ptr<const text::Grammar>> grammar = compile(*format.grammar);
    return grammar.ok() ? std::move(grammar)
                        : Result<std::shared_ptr<const text::Grammar>>(
                              blame(grammar.status(), format.field));
  }
  if (rules->otherwise) {
    // By itself first: a fault of it is not one of the tools.
    if (const auto alone = compile(*rules->otherwise); !alone.ok()) {
      return blame(alone.status(), format.field);
    }
  }
  Result<std::shared_ptr<const text::Grammar>> grammar =
      compile(text::tool_call_grammar(*rules, profile));
  if (grammar.ok()) {
    return grammar;
  }
  // A schema that did not ask to be strict may say what no grammar can: then any arguments do.
  const Status fault = grammar.status();
  bool relaxed = false;
  for (text::ToolSpec& tool : rules->tools) {
    if (!tool.strict && !tool.parameters_json.empty()) {
      tool.parameters_json.clear();
      relaxed = true;
    }
  }
  if (relaxed) {
    grammar = compile(text::tool_call_grammar(*rules, profile));
  }
  return grammar.ok() ? std::move(grammar)
                      : Result<std::shared_ptr<const text::Grammar>>(blame(fault, "tools"));
}

Status add_grammar(const AnswerFormat& format,
                   const RequestContext& context,
                   engine::GenerationRequest& request) {
  if (context.grammars == nullptr || !format.grammar) {
    return {};
  }
  Result<std::shared_ptr<const text::Grammar>> grammar =
      context.grammars->make(format, {}, {}, context.config.chat_profile);
  if (grammar.ok()) {
    request.grammar = std::move(grammar).value();
  }
  return grammar.status();
}

}  // namespace baleen::server
