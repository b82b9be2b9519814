#pragma once
// Reads one block of tool calls (DSML) that arrives in pieces, from behind its opening tag to its
// closing tag, and keeps what is well formed: a call that cannot be parsed, is not closed or names
// a tool that the request does not have is dropped, the calls after it are kept. Inside a block
// every tag of the format is structure, also in the middle of a parameter that was not closed.
// Used by OutputStream, one thread.
//
//   ToolBlockParser block(profile, schemas, sink);
//   bool ended = block.consume(pending, false);  // takes what it can from the front of `pending`
//   block.end();                                 // when the text ends first

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/call_writer.h"
#include "text/output_stream.h"
#include "text/tool_schema.h"

namespace baleen::text {

class ToolBlockParser {
 public:
  struct Sink {
    std::function<void(int32_t call_index, OutputPart part, std::string_view text)> delta;
    std::function<void(ToolCall call)> call;  // a complete one
    std::function<int32_t()> next_index;      // number of a call whose first delta is due
  };

  /// `schemas` outlives this object.
  ToolBlockParser(ChatProfile profile, const ToolSchemas& schemas, Sink sink);

  ToolBlockParser(const ToolBlockParser&) = delete;  // its call reports to this very object
  ToolBlockParser& operator=(const ToolBlockParser&) = delete;

  /// True when the block is closed; the text after it stays in `pending`. An end-of-turn text ends
  /// the block too.
  bool consume(std::string& pending);
  /// No more text comes, or the block is over: drops the call that is still open.
  void end();
  /// After the end: something in the block could not be used, or it had no call.
  bool unparsable() const { return bad_ || num_calls_ == 0; }

 private:
  enum class Place {
    kBetweenCalls,
    kInvoke,  // from the tag to the next one: head and, if the call has one, JSON body
    kBetweenParameters,
    kParameterHead,
    kValue,
    kSkipped,  // inside a call that was dropped
  };

  void take_text(std::string_view text);
  void take_tag(int tag);
  void settle_invoke(int tag);
  void close_call(std::string arguments);
  void drop_call();

  const ToolSchemas& schemas_;
  Sink sink_;
  std::vector<std::string> markers_;
  Place place_ = Place::kBetweenCalls;
  std::string text_;  // of the head being read
  std::optional<CallWriter> call_;
  int32_t call_index_ = -1;
  bool bad_ = false;
  int32_t num_calls_ = 0;
};

}  // namespace baleen::text
