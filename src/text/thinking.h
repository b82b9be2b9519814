#pragma once
// The one decision of a request about thinking: does the model think, and how hard. Prompt, parser
// and stop rules all read it. Pure, any thread.
//
//   ThinkingFields fields;
//   fields.efforts.push_back({"reasoning_effort", std::string("max")});
//   Result<ThinkingDecision> decision = decide_thinking(ChatProfile::kV4, fields, false);

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/output_stream.h"

namespace baleen::text {

enum class EffortLevel : uint8_t { kDefault, kLow, kHigh, kMax, kNumber };

struct Effort {
  EffortLevel level = EffortLevel::kDefault;
  int32_t number = 0;  // for kNumber: 1 to 100, profile v4.1 only
  friend bool operator==(const Effort&, const Effort&) = default;
};

struct ThinkingDecision {
  bool thinking = false;
  Effort effort;  // kDefault when the model does not think
  friend bool operator==(const ThinkingDecision&, const ThinkingDecision&) = default;
};

/// An effort field as it stands in the request: text, a whole number, a fraction, a truth value, or
/// nothing when it is absent or null.
using EffortValue = std::variant<std::monostate, std::string, int64_t, double, bool>;

struct EffortField {
  std::string param;  // its path, such as reasoning_effort or reasoning.effort
  EffortValue value;
};

/// What a request says about thinking; absent fields are empty.
struct ThinkingFields {
  std::optional<std::string> thinking_type;  // thinking.type: disabled, enabled or adaptive
  std::optional<bool> kwargs_thinking;       // chat_template_kwargs.thinking
  std::optional<bool> kwargs_enable_thinking;
  std::vector<EffortField> efforts;  // the first one given counts; "none" in any turns thinking off
};

/// First rule that applies: any explicit off, any explicit on (an effort is one), the default.
/// Values the profile does not know are a Status that names the field, in either mode.
Result<ThinkingDecision> decide_thinking(ChatProfile profile,
                                         const ThinkingFields& fields,
                                         bool default_thinking);

/// What profile v4.1 writes into the prompt: 1 to 100.
int32_t effort_number(const Effort& effort);

/// Name of the level that a thinking request without effort gets, for the log and the model card.
std::string_view default_effort_name(ChatProfile profile);

}  // namespace baleen::text
