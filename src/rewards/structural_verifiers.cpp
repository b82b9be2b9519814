#include "rewards/structural_verifiers.h"

#include "base/error.h"
#include "rewards/math_answer.h"
#include "text/json_text.h"

namespace baleen::rewards {
namespace {

// A step of these is a few nanoseconds, and a response has up to some 100,000 characters.
constexpr int64_t kStructuralSteps = 50'000'000;

KnownCase structural_case(std::string response, std::string label, double expected) {
  KnownCase result;
  result.input.response = std::move(response);
  result.input.label = std::move(label);
  result.expected = expected;
  return result;
}

}  // namespace

RegexVerifier::RegexVerifier(const std::string& pattern) {
  if (pattern.empty()) {
    return;
  }
  Result<LinearRegex> regex = LinearRegex::compile(pattern);
  if (!regex.ok()) {
    throw ConfigError("rm_pattern: " + regex.status().message);
  }
  regex_ = std::move(regex).value();
}

Result<Score> RegexVerifier::verify(const RewardInput& input, const CallLimits& /*limits*/) const {
  StepBudget budget(kStructuralSteps);
  std::optional<bool> found;
  if (regex_) {
    found = regex_->search(input.response, budget);
  } else {
    const Result<LinearRegex> regex = LinearRegex::compile(input.label);
    if (!regex.ok()) {
      return Status::invalid(regex.status().message, "label");
    }
    found = regex->search(input.response, budget);
  }
  if (!found) {
    return Status::invalid("the pattern and the response are too large together", "response");
  }
  return Score{*found ? 1.0 : 0.0, *found, {}};
}

std::vector<KnownCase> RegexVerifier::known_cases() const {
  if (regex_) {
    return {};  // what matches it is the user's to know
  }
  return {structural_case("say 42!", "\\b\\d+\\b", 1.0), structural_case("say 42x", "^\\d+$", 0.0)};
}

JsonSchemaVerifier::JsonSchemaVerifier(const std::string& schema) {
  if (schema.empty()) {
    return;
  }
  Result<JsonSchema> compiled = JsonSchema::compile(schema);
  if (!compiled.ok()) {
    throw ConfigError("rm_schema: " + compiled.status().message);
  }
  schema_ = std::move(compiled).value();
}

Result<Score> JsonSchemaVerifier::verify(const RewardInput& input,
                                         const CallLimits& /*limits*/) const {
  StepBudget budget(kStructuralSteps);
  JsonSchema::Verdict verdict;
  if (schema_) {
    verdict = schema_->validate(trimmed(input.response), budget);
  } else {
    const Result<JsonSchema> schema = JsonSchema::compile(input.label);
    if (!schema.ok()) {
      return Status::invalid(schema.status().message, "label");
    }
    verdict = schema->validate(trimmed(input.response), budget);
  }
  Score score{verdict.valid ? 1.0 : 0.0, verdict.valid, {}};
  if (!verdict.valid) {
    score.detail = "{\"reason\":" + text::json_string(verdict.reason) + "}";
  }
  return score;
}

std::vector<KnownCase> JsonSchemaVerifier::known_cases() const {
  if (schema_) {
    return {};
  }
  const std::string schema = R"({"type":"object","required":["a"]})";
  return {structural_case(R"({"a":1})", schema, 1.0), structural_case("{}", schema, 0.0)};
}

}  // namespace baleen::rewards
