#pragma once
// The fixed strings of the chat format, in one place for the renderer and the output parser. Tag
// texts end before their attributes or their `>`. Constants, any thread.
//
//   const MarkupTags& tags = markup_tags(ChatProfile::kV4);
//   text += tags.block_begin + ">\n";   // <｜DSML｜tool_calls>

#include <string>
#include <string_view>

#include "text/output_stream.h"

namespace baleen::text {

inline constexpr std::string_view kUserText = "<｜User｜>";
inline constexpr std::string_view kAssistantText = "<｜Assistant｜>";
inline constexpr std::string_view kSystemText = "<｜System｜>";  // profile v4.1 only
inline constexpr std::string_view kReminderText = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkBegin = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";

struct MarkupTags {
  std::string block_begin;      // <｜DSML｜tool_calls
  std::string block_end;        // </｜DSML｜tool_calls
  std::string invoke_begin;     // <｜DSML｜invoke
  std::string invoke_end;       // </｜DSML｜invoke
  std::string parameter_begin;  // <｜DSML｜parameter
  std::string parameter_end;    // </｜DSML｜parameter
};

const MarkupTags& markup_tags(ChatProfile profile);

}  // namespace baleen::text
