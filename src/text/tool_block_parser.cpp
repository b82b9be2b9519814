#include "text/tool_block_parser.h"

#include <algorithm>
#include <utility>

#include "text/chat_markup.h"
#include "text/json_text.h"
#include "text/marker_scan.h"
#include "text/tokenizer.h"

namespace baleen::text {
namespace {

constexpr std::string_view kSpace = " \t\r\n\f\v";

// Indices into the markers; the last two end the block.
enum Tag : int {
  kInvokeBegin,
  kInvokeEnd,
  kParameterBegin,
  kParameterEnd,
  kBlockBegin,
  kBlockEnd,
  kEndOfTurn,
};

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos
             ? std::string_view()
             : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// ` name="NAME">body` or ` name="NAME"/>`, NAME as short as possible.
struct InvokeHead {
  std::string name;
  std::string_view body;
  bool self_closed = false;
};

std::optional<InvokeHead> parse_invoke_head(std::string_view text) {
  constexpr std::string_view kName = "name=\"";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos || !text.substr(begin).starts_with(kName)) {
    return std::nullopt;
  }
  text.remove_prefix(begin + kName.size());
  for (size_t quote = text.find('"'); quote != std::string_view::npos;
       quote = text.find('"', quote + 1)) {
    std::string_view rest = text.substr(quote + 1);
    rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
    const bool self_closed = rest.starts_with("/>");
    if (self_closed || rest.starts_with('>')) {
      rest.remove_prefix(self_closed ? 2 : 1);
      return InvokeHead{std::string(text.substr(0, quote)), rest, self_closed};
    }
  }
  return std::nullopt;
}

/// ` name="KEY" string="true|false">`, KEY as short as possible; `rest` is what follows.
struct ParameterHead {
  std::string key;
  bool is_string = false;
  std::string_view rest;
};

std::optional<ParameterHead> parse_parameter_head(std::string_view text) {
  constexpr std::string_view kName = "name=\"";
  constexpr std::string_view kTrue = "\" string=\"true\">";
  constexpr std::string_view kFalse = "\" string=\"false\">";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos || !text.substr(begin).starts_with(kName)) {
    return std::nullopt;
  }
  text.remove_prefix(begin + kName.size());
  const size_t at_true = text.find(kTrue);
  const size_t at_false = text.find(kFalse);
  if (at_true == at_false) {  // neither is there
    return std::nullopt;
  }
  const bool is_string = at_true < at_false;
  const size_t end = is_string ? at_true : at_false;
  return ParameterHead{std::string(text.substr(0, end)),
                       is_string,
                       text.substr(end + (is_string ? kTrue.size() : kFalse.size()))};
}

}  // namespace

ToolBlockParser::ToolBlockParser(ChatProfile profile, const ToolSchemas& schemas, Sink sink)
    : schemas_(schemas), sink_(std::move(sink)) {
  const MarkupTags& tags = markup_tags(profile);
  markers_ = {tags.invoke_begin,
              tags.invoke_end,
              tags.parameter_begin,
              tags.parameter_end,
              tags.block_begin,
              tags.block_end + ">",
              std::string(kEosText)};
}

bool ToolBlockParser::consume(std::string& pending) {
  size_t done = 0;
  bool closed = false;
  while (!closed) {
    const std::string_view rest = std::string_view(pending).substr(done);
    const auto hit = scan_markers(rest, markers_, false);
    const size_t num_text = hit ? hit->begin : rest.size();
    take_text(rest.substr(0, num_text));
    done += num_text;
    if (!hit || hit->marker < 0) {
      break;
    }
    done += markers_[static_cast<size_t>(hit->marker)].size();
    if (hit->marker == kBlockEnd || hit->marker == kEndOfTurn) {
      end();
      closed = true;
    } else {
      take_tag(hit->marker);
    }
  }
  pending.erase(0, done);
  return closed;
}

void ToolBlockParser::end() {
  if (place_ == Place::kInvoke) {
    settle_invoke(kBlockEnd);
  }
  if (call_) {
    drop_call();
  }
  place_ = Place::kBetweenCalls;
}

void ToolBlockParser::take_text(std::string_view text) {
  switch (place_) {
    case Place::kInvoke:
      text_ += text;
      break;
    case Place::kParameterHead:
      text_ += text;
      // A head ends in '>', so text without one cannot have completed it.
      if (text.find('>') != std::string_view::npos) {
        if (const auto head = parse_parameter_head(text_)) {
          call_->begin_parameter(head->key, head->is_string);
          place_ = Place::kValue;
          call_->value(head->rest);
        }
      }
      break;
    case Place::kValue:
      call_->value(text);
      break;
    default:
      break;  // between tags stands white space; other text there has no meaning
  }
}

void ToolBlockParser::take_tag(int tag) {
  if (place_ == Place::kInvoke) {
    settle_invoke(tag);
  }
  switch (tag) {
    case kInvokeBegin:
    case kBlockBegin:
      if (call_) {
        drop_call();  // not closed
      }
      place_ = tag == kInvokeBegin ? Place::kInvoke : Place::kBetweenCalls;
      text_.clear();
      break;
    case kParameterBegin:
      if (place_ == Place::kBetweenParameters) {
        place_ = Place::kParameterHead;
        text_.clear();
      } else if (call_) {
        drop_call();  // the parameter before was not closed
      }
      break;
    case kParameterEnd:
      if (place_ == Place::kValue) {
        call_->end_parameter();
        place_ = Place::kBetweenParameters;
      } else if (call_) {
        drop_call();  // the parameter's head was not what it should be
      }
      break;
    case kInvokeEnd:
      if (place_ == Place::kBetweenParameters) {
        close_call(call_->close());
      } else if (call_) {
        drop_call();
      }
      break;
    default:
      break;
  }
}

/// The text from an invoke tag to the tag after it is complete: opens the call, and completes it
/// where it needs no parameters.
void ToolBlockParser::settle_invoke(int tag) {
  const auto head = parse_invoke_head(text_);
  const ToolSchema* tool = head ? schemas_.find(head->name) : nullptr;
  if (tool == nullptr) {
    drop_call();
    return;
  }
  call_index_ = -1;
  call_.emplace(*tool, [this](OutputPart part, std::string_view text) {
    if (call_index_ < 0) {
      call_index_ = sink_.next_index();
    }
    sink_.delta(call_index_, part, text);
  });
  const std::string_view body = trimmed(head->body);
  place_ = Place::kBetweenParameters;
  if (head->self_closed) {
    close_call(call_->close());
    return;
  }
  if (tag == kInvokeEnd && !body.empty()) {
    const auto object = parse_json(body);
    if (object && object->is_object()) {
      close_call(call_->close_with(body));
    } else {
      drop_call();
    }
    return;
  }
  if ((tag != kInvokeEnd && tag != kParameterBegin) || !body.empty()) {
    drop_call();
  }
}

void ToolBlockParser::close_call(std::string arguments) {
  ToolCall call{call_->name(), std::move(arguments)};
  call_.reset();
  place_ = Place::kBetweenCalls;
  ++num_calls_;
  sink_.call(std::move(call));
}

void ToolBlockParser::drop_call() {
  call_.reset();
  place_ = Place::kSkipped;
  bad_ = true;
}

}  // namespace baleen::text
