#pragma once
// The grammar of an answer that calls tools, in the chat format's own markup. Pure, any thread.
//
//   ToolCallRules rules{.tools = specs, .must_call = true};
//   GrammarSpec spec = tool_call_grammar(rules, ChatProfile::kV4);

#include <optional>
#include <string>
#include <vector>

#include "text/grammar.h"
#include "text/output_stream.h"

namespace baleen::text {

struct ToolCallRules {
  std::vector<ToolSpec> tools;  // that may be called; of none with an empty schema any arguments
  bool must_call = false;       // the answer is a block of calls and nothing else
  bool one_call = false;        // the block has one call
  std::optional<GrammarSpec> otherwise;  // of an answer without calls; none: free text
};

/// Text with at most one block of calls at its end, or the block alone, or the block or
/// `otherwise`. Arguments follow the tools' schemas. A string argument of bounded length has no
/// character U+FF5C, which only tags need.
GrammarSpec tool_call_grammar(const ToolCallRules& rules, ChatProfile profile);

}  // namespace baleen::text
