#pragma once
// Whether a JSON text is valid under a JSON schema (2020-12; the part that describes answers).
// Keywords outside that part are refused by name when the schema is read, never passed over.
// Immutable once compiled; any thread.
//
//   Result<JsonSchema> schema = JsonSchema::compile(R"({"type":"object","required":["a"]})");
//   schema->validate(R"({"a":1})", budget).valid

#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "rewards/linear_regex.h"
#include "rewards/step_budget.h"
#include "text/json_text.h"

namespace baleen::rewards {

class JsonSchema {
 public:
  /// kInvalidArgument naming the place in the schema. Known: type, enum, const, properties,
  /// required, additionalProperties, minProperties, maxProperties, items, prefixItems, minItems,
  /// maxItems, uniqueItems, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf,
  /// minLength, maxLength, pattern, allOf, anyOf, oneOf, not, $ref into the schema itself, $defs,
  /// definitions, true and false, and annotations.
  static Result<JsonSchema> compile(std::string_view schema);

  struct Verdict {
    bool valid = false;
    std::string reason;  // the first thing that is wrong, with its place; empty if valid
  };
  /// A text that is no JSON is not valid, and neither is one whose check spends the budget.
  Verdict validate(std::string_view text, StepBudget& budget) const;

 private:
  friend class SchemaCheck;
  text::JsonValue root_;
  std::map<std::string, LinearRegex> patterns_;
};

}  // namespace baleen::rewards
