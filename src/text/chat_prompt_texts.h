#pragma once
// The long fixed texts of the chat format: instructions for tools, for a response format and for
// the effort of thinking. Byte for byte as published; the tests hold them against their hashes.
//
//   std::string_view text = effort_text(ChatProfile::kV4, effort);  // empty: none is written

#include <string>
#include <string_view>

#include "text/output_stream.h"
#include "text/thinking.h"

namespace baleen::text {

/// Put before the first message in thinking mode; empty for most levels. Profiles v4 and v4-0731.
std::string_view effort_text(ChatProfile profile, const Effort& effort);

/// Line and blank line of profile v4.1.
std::string numeric_effort_text(const Effort& effort);

/// The tools block up to the schemas, and what follows them.
std::string tools_block_head(ChatProfile profile);
std::string_view tools_block_tail();

std::string_view response_format_head();

}  // namespace baleen::text
