#pragma once
// Verifiers of form: regex and json_schema. Made by make_verifier.

#include <optional>
#include <string>

#include "rewards/json_schema.h"
#include "rewards/linear_regex.h"
#include "rewards/verifier.h"

namespace baleen::rewards {

/// The pattern matches somewhere in the response (anchor it with ^ and $ for the whole): 1 or 0.
/// Without a pattern of the run, the label is the pattern.
class RegexVerifier final : public Verifier {
 public:
  /// Throws ConfigError for a pattern that is none.
  explicit RegexVerifier(const std::string& pattern);
  std::string name() const override { return "regex"; }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override;
  bool needs_label() const override { return !regex_; }

 private:
  std::optional<LinearRegex> regex_;
};

/// The trimmed response is JSON that is valid under the schema: 1 or 0. Without a schema of the
/// run, the label is the schema.
class JsonSchemaVerifier final : public Verifier {
 public:
  /// Throws ConfigError for a schema that is none.
  explicit JsonSchemaVerifier(const std::string& schema);
  std::string name() const override { return "json_schema"; }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override;
  bool needs_label() const override { return !schema_; }

 private:
  std::optional<JsonSchema> schema_;
};

}  // namespace baleen::rewards
