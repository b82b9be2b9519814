#include "text/output_stream.h"

#include <utility>

#include "base/check.h"
#include "text/chat_markup.h"
#include "text/detokenizer.h"
#include "text/marker_scan.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"
#include "text/tool_block_parser.h"
#include "text/tool_schema.h"
#include "text/visible_text.h"

namespace baleen::text {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\f\v";

// Indices into State::markers.
// Indices into State::markers; the others are only left out of the text.
enum Marker : int { kBlock = 0, kCloseThink = 1 };

}  // namespace

struct OutputStream::State {
  State(std::shared_ptr<const Tokenizer> shared, OutputConfig given)
      : tokenizer(std::move(shared)),
        config(std::move(given)),
        tools(config.tools),
        reasoning(config.stop_in_reasoning ? config.stop : std::vector<std::string>(),
                  config.include_stop,
                  config.parse_markup),
        content(config.stop, config.include_stop, config.parse_markup) {
    if (config.parse_markup) {
      markers = {markup_tags(config.profile).block_begin,
                 std::string(kThinkEnd),
                 std::string(kThinkBegin),
                 std::string(kBosText),
                 std::string(kEosText),
                 std::string(kDsml)};
      in_reasoning = config.starts_in_reasoning;
    }
  }

  bool is_left_out(int32_t id) const {
    if (!config.skip_special_tokens || !tokenizer->is_special(id)) {
      return false;
    }
    if (!config.parse_markup) {
      return true;
    }
    // A vocabulary may flag the tokens that markup is made of.
    const std::string_view text = tokenizer->token_bytes(id);
    return text != kThinkBegin && text != kThinkEnd && text != kDsml && text != kEosText;
  }

  void push(int32_t id, std::vector<OutputDelta>& out) {
    deltas = &out;
    num_reasoning_tokens += in_reasoning ? 1 : 0;
    if (!is_left_out(id)) {
      detokenizer.push(tokenizer->token_bytes(id), pending);
      consume(false);
    }
    deltas = nullptr;
  }

  void finish(EndCause cause, std::vector<OutputDelta>& out) {
    deltas = &out;
    if (!stopped()) {
      detokenizer.flush(pending);
      consume(true);
      if (block) {
        end_block(cause);
      }
    }
    flush_text();
    if (config.starts_in_reasoning && !reasoning_closed && cause == EndCause::kStop) {
      take_reasoning_as_content();
    }
    deltas = nullptr;
  }

  bool stopped() const { return reasoning.stopped() || content.stopped(); }

  /// Works through `pending` as far as it is certain.
  void consume(bool at_end) {
    while (!pending.empty() && !stopped()) {
      if (block) {
        if (!block->consume(pending)) {
          return;
        }
        end_block(EndCause::kStop);
      } else if (!consume_text(at_end)) {
        return;
      }
    }
  }

  /// Text up to the next marker, and the marker. False when more text has to come first.
  bool consume_text(bool at_end) {
    if (at_end) {
      drop_cut_block();
    }
    const auto hit = scan_markers(pending, markers, at_end);
    const size_t num_text = hit ? hit->begin : pending.size();
    emit(std::string_view(pending).substr(0, num_text));
    pending.erase(0, num_text);
    if (stopped()) {
      return true;
    }
    if (!hit || hit->marker < 0) {
      return false;
    }
    pending.erase(0, markers[static_cast<size_t>(hit->marker)].size());
    if (hit->marker == kBlock) {
      begin_block();
    } else if (hit->marker == kCloseThink) {
      reasoning_closed = true;
      if (in_reasoning) {
        flush_text();
        in_reasoning = false;
      }
    }
    return true;  // every other marker is left out of the text
  }

  /// The text ends inside the opening tag of a tool block.
  void drop_cut_block() {
    const auto hit = scan_markers(pending, markers, false);
    if (!hit || hit->marker >= 0 || pending.find(kDsml, hit->begin) == std::string::npos) {
      return;
    }
    emit(std::string_view(pending).substr(0, hit->begin));
    (in_reasoning ? reasoning : content).drop_held_newlines();
    pending.clear();
    ++num_unparsable_blocks;
  }

  void emit(std::string_view text) {
    if (after_block) {
      // Text after a block counts only if it is not blank.
      blank += text;
      if (blank.find_first_not_of(kBlanks) == std::string::npos) {
        return;
      }
      after_block = false;
      send(std::exchange(blank, {}));
      return;
    }
    send(text);
  }

  void send(std::string_view text) {
    if (in_reasoning) {
      add(OutputPart::kReasoning, reasoning.push(text), -1);
    } else {
      add(OutputPart::kContent, content.push(text), -1);
    }
  }

  /// Releases what was held back of the current text.
  void flush_text() {
    blank.clear();
    if (in_reasoning) {
      add(OutputPart::kReasoning, reasoning.flush(), -1);
    } else {
      add(OutputPart::kContent, content.flush(), -1);
    }
  }

  void begin_block() {
    (in_reasoning ? reasoning : content).drop_held_newlines();
    flush_text();
    if (stopped()) {
      return;
    }
    in_reasoning = false;
    block.emplace(config.profile,
                  tools,
                  ToolBlockParser::Sink{
                      [this](int32_t index, OutputPart part, std::string_view text) {
                        add(part, std::string(text), index);
                      },
                      [this](ToolCall call) { message.tool_calls.push_back(std::move(call)); },
                      [this] { return num_calls_begun++; }});
  }

  void end_block(EndCause cause) {
    block->end();
    if (block->unparsable() && cause != EndCause::kAbort) {
      ++num_unparsable_blocks;
    }
    block.reset();
    after_block = true;
  }

  void add(OutputPart part, std::string text, int32_t call_index) {
    if (part == OutputPart::kReasoning) {
      message.reasoning += text;
    } else if (part == OutputPart::kContent) {
      message.content += text;
    }
    if (text.empty()) {
      return;
    }
    if (!deltas->empty() && deltas->back().part == part &&
        deltas->back().call_index == call_index && part != OutputPart::kToolCallBegin) {
      deltas->back().text += text;
    } else {
      deltas->push_back({part, std::move(text), call_index});
    }
  }

  /// The model stopped inside its reasoning: what it wrote is the answer.
  void take_reasoning_as_content() {
    if (!message.tool_calls.empty() || !message.content.empty()) {
      return;
    }
    in_reasoning = false;
    num_reasoning_tokens = 0;
    const std::string text = std::exchange(message.reasoning, {});
    if (reasoning.stopped()) {
      add(OutputPart::kContent, text, -1);
    } else {
      send(text);  // the visible answer, so the stop strings act on it
      flush_text();
    }
  }

  std::shared_ptr<const Tokenizer> tokenizer;
  OutputConfig config;
  ToolSchemas tools;
  std::vector<std::string> markers;  // none for raw completions
  Detokenizer detokenizer;
  std::string pending;  // text not looked at yet, or that may be the beginning of a marker
  VisibleText reasoning;
  VisibleText content;
  std::optional<ToolBlockParser> block;
  bool in_reasoning = false;
  bool reasoning_closed = false;  // by its end token
  bool after_block = false;
  std::string blank;  // white space after a block
  int32_t num_calls_begun = 0;
  int64_t num_reasoning_tokens = 0;
  int64_t num_unparsable_blocks = 0;
  bool finished = false;
  OutputMessage message;
  std::vector<OutputDelta>* deltas = nullptr;  // where the current call puts its output
};

OutputStream::OutputStream(std::shared_ptr<const Tokenizer> tokenizer, OutputConfig config)
    : state_(std::make_unique<State>(std::move(tokenizer), std::move(config))) {}
OutputStream::~OutputStream() = default;
OutputStream::OutputStream(OutputStream&&) noexcept = default;
OutputStream& OutputStream::operator=(OutputStream&&) noexcept = default;

void OutputStream::push(int32_t token_id, std::vector<OutputDelta>& deltas) {
  if (!state_->finished && !state_->stopped()) {
    state_->push(token_id, deltas);
  }
}

void OutputStream::finish(EndCause cause, std::vector<OutputDelta>& deltas) {
  BALEEN_CHECK(!state_->finished, "finish() was called before");
  state_->finish(cause, deltas);
  state_->finished = true;
}

bool OutputStream::stopped() const {
  return state_->stopped();
}

const std::optional<std::string>& OutputStream::matched_stop() const {
  return state_->reasoning.stopped() ? state_->reasoning.matched() : state_->content.matched();
}

bool OutputStream::in_reasoning() const {
  return state_->in_reasoning;
}

int64_t OutputStream::reasoning_tokens() const {
  return state_->num_reasoning_tokens;
}

int64_t OutputStream::unparsable_tool_blocks() const {
  return state_->num_unparsable_blocks;
}

const OutputMessage& OutputStream::message() const {
  BALEEN_CHECK(state_->finished, "the message is settled by finish()");
  return state_->message;
}

}  // namespace baleen::text
