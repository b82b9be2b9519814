#include "text/chat_prompt_texts.h"

#include <fmt/format.h>

#include "text/chat_markup.h"

namespace baleen::text {
namespace {

constexpr std::string_view kAbsoluteMaximum =
    R"(Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.

)";

constexpr std::string_view kBeyondMaximum =
    R"(Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.

)";

constexpr std::string_view kToolsHead =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "{block}>" block like the following:

{block}>
{invoke} name="$TOOL_NAME">
{parameter} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE{parameter_end}>
...
{invoke_end}>
{invoke} name="$TOOL_NAME2">
...
{invoke_end}>
{block_end}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";

constexpr std::string_view kToolsTail =
    R"(

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
)";

constexpr std::string_view kResponseFormatHead =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

}  // namespace

std::string_view effort_text(ChatProfile profile, const Effort& effort) {
  const bool max = effort.level == EffortLevel::kMax;
  if (profile == ChatProfile::kV4) {
    return max ? kAbsoluteMaximum : std::string_view();
  }
  if (profile == ChatProfile::kV4_0731) {
    return max                                  ? kBeyondMaximum
           : effort.level == EffortLevel::kHigh ? kAbsoluteMaximum
                                                : std::string_view();
  }
  return {};
}

std::string numeric_effort_text(const Effort& effort) {
  return fmt::format(
      "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the "
      "reasoning)\n\n",
      effort_number(effort));
}

std::string tools_block_head(ChatProfile profile) {
  const MarkupTags& tags = markup_tags(profile);
  return fmt::format(kToolsHead,
                     fmt::arg("block", tags.block_begin),
                     fmt::arg("block_end", tags.block_end),
                     fmt::arg("invoke", tags.invoke_begin),
                     fmt::arg("invoke_end", tags.invoke_end),
                     fmt::arg("parameter", tags.parameter_begin),
                     fmt::arg("parameter_end", tags.parameter_end));
}

std::string_view tools_block_tail() {
  return kToolsTail;
}

std::string_view response_format_head() {
  return kResponseFormatHead;
}

}  // namespace baleen::text
