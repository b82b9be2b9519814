// What a response may hold that a verifier reads. First byte: mathematics, a regular expression or
// a JSON schema; then two texts with a line end between: answer and label, pattern and text, schema
// and value. Whatever they are, the work is bounded, and an answer equals itself.
#include <algorithm>
#include <cstdint>
#include <string>

#include "fuzz_check.h"
#include "rewards/json_schema.h"
#include "rewards/linear_regex.h"
#include "rewards/math_answer.h"
#include "rewards/math_equality.h"
#include "rewards/math_form.h"

namespace baleen::rewards {
namespace {

constexpr int64_t kMathSteps = 1'100'000;
constexpr int64_t kOtherSteps = 200'000;

void check_math(const std::string& answer, const std::string& label) {
  const MathMatch match = compare_answers(answer, label, {});
  FUZZ_CHECK(match.steps < kMathSteps);
  StepBudget budget;
  const std::string form = math_form(answer, budget);
  FUZZ_CHECK(compare_answers(answer, answer, {}).equal == !form.empty());
  last_boxed(answer);
  last_answer_line(answer);
}

void check_regex(const std::string& pattern, const std::string& text) {
  const Result<LinearRegex> regex = LinearRegex::compile(pattern);
  if (!regex.ok()) {
    FUZZ_CHECK(!regex.status().message.empty());
    return;
  }
  StepBudget budget(kOtherSteps);
  FUZZ_CHECK(regex->search(text, budget).has_value() || budget.spent());
}

void check_schema(const std::string& schema, const std::string& value) {
  const Result<JsonSchema> compiled = JsonSchema::compile(schema);
  if (!compiled.ok()) {
    FUZZ_CHECK(!compiled.status().message.empty());
    return;
  }
  StepBudget budget(kOtherSteps);
  const JsonSchema::Verdict verdict = compiled->validate(value, budget);
  FUZZ_CHECK(verdict.valid || !verdict.reason.empty());
}

}  // namespace
}  // namespace baleen::rewards

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 4096) {
    return -1;
  }
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t cut = std::min(text.find('\n'), text.size());
  const std::string first = text.substr(0, cut);
  const std::string second = cut < text.size() ? text.substr(cut + 1) : std::string();
  switch (data[0] % 3) {
    case 0:
      baleen::rewards::check_math(first, second);
      break;
    case 1:
      baleen::rewards::check_regex(first, second);
      break;
    default:
      baleen::rewards::check_schema(first, second);
      break;
  }
  return 0;
}
