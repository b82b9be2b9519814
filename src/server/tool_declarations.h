#pragma once
// The tools that a request declares and its choice among them, as far as the dialects agree. Pure,
// any thread.
//
//   ToolFields tools;
//   std::set<std::string> names;
//   read_function(function, raw_function, names, tools);   // for each tool
//   settle_tools(fields, tools);

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "server/field_reader.h"
#include "text/json_text.h"
#include "text/output_stream.h"

namespace baleen::server {

inline constexpr size_t kMaxToolNameBytes = 64;

/// Which calls an answer may have.
struct ToolChoice {
  enum class Kind : uint8_t { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;                   // of kNamed
  bool one_call = false;              // not several in one answer
  std::string field = "tool_choice";  // for errors
};

struct ToolFields {
  std::vector<std::string> functions;  // each tool's function, for the prompt
  std::vector<text::ToolSpec> specs;   // the same, for the output parser
  ToolChoice choice;
};

/// Refuses a name that is not 1 to `max_bytes` letters, digits, '_', '-' or '.', and one that
/// `names` has; adds it to them.
void claim_tool_name(FieldReader& tool,
                     const std::string& name,
                     size_t max_bytes,
                     std::set<std::string>& names);

/// The rest of a function's object: name, description, parameters, strict. `raw` is the object as
/// the prompt shows it; null: none is, because the request is at fault.
void read_function(FieldReader& function,
                   const text::JsonValue* raw,
                   std::set<std::string>& names,
                   ToolFields& tools);

/// "tool_choice" as a word: "auto", "none" or "required".
void read_tool_choice_word(FieldReader& fields, const json::value& choice, ToolChoice& out);

/// Drops the tools of a request that may not call any, and refuses a choice that has no tool.
void settle_tools(FieldReader& fields, ToolFields& tools);

}  // namespace baleen::server
