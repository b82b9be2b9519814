#pragma once
// Turns the parameters of one tool call, as the model writes them, into the JSON text of its
// arguments, and lets fragments out as early as they are certain. Used by ToolBlockParser, one
// thread.
//
//   CallWriter call(tool, sink);
//   call.begin_parameter("path", true);  call.value("/a");  call.value("bc"); call.end_parameter();
//   std::string arguments = call.close();  // {"path": "/abc"}
//
// Certain at once is a string value, unless it may be a wrapper. Held until their end are values
// that claim to be JSON (they may prove not to be) and a first parameter that may be a wrapper
// (it is one only if it stays alone).

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_stream.h"
#include "text/tool_schema.h"

namespace baleen::text {

class CallWriter {
 public:
  /// Receives the name once, before the first fragment, then the fragments. Joined they are the
  /// arguments, except that a parameter given twice stands in them twice.
  using Sink = std::function<void(OutputPart part, std::string_view text)>;

  CallWriter(const ToolSchema& tool, Sink sink);

  void begin_parameter(std::string key, bool is_string);
  void value(std::string_view text);
  void end_parameter();
  /// The call is `json_object`, written in one piece.
  std::string close_with(std::string_view json_object);
  /// The call ends after its parameters; returns the JSON text of its arguments.
  std::string close();

  const std::string& name() const { return tool_.name; }

 private:
  struct Parameter {
    std::string key;
    std::string json;  // the value as JSON text
  };

  void send(std::string_view fragment);
  void send_key();
  void settle_wrapper_as_parameter();

  const ToolSchema& tool_;
  Sink sink_;
  bool name_sent_ = false;
  bool wrapper_held_ = false;  // the only parameter so far may be a wrapper
  bool is_string_ = false;
  std::string key_;
  std::string raw_;   // value of a held parameter
  std::string json_;  // JSON text of a value that goes out as it comes
  std::vector<Parameter> parameters_;
};

}  // namespace baleen::text
