#include "train/chat_sample.h"

#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "text/chat_renderer.h"

namespace baleen::train {
namespace {

using text::ChatMessage;
using text::PromptPiece;
using text::Role;

bool is_user_side(Role role) {
  return role == Role::kUser || role == Role::kTool;
}

bool wants_thinking(std::span<const ChatMessage> messages) {
  bool thinking = false;
  for (const ChatMessage& message : messages) {
    if (message.role == Role::kUser || message.role == Role::kDeveloper) {
      thinking = false;
    } else if (message.role == Role::kAssistant && !message.reasoning_content.empty()) {
      thinking = true;
    }
  }
  return thinking;
}

std::size_t last_asking(std::span<const ChatMessage> messages) {
  std::size_t last = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (is_user_side(messages[i].role) || messages[i].role == Role::kDeveloper) {
      last = i;
    }
  }
  return last;
}

std::size_t length_of(const std::vector<PromptPiece>& pieces) {
  std::size_t length = 0;
  for (const PromptPiece& piece : pieces) {
    length += piece.text.size();
  }
  return length;
}

/// Pieces of [begin, end) bytes of the text.
std::vector<PromptPiece> cut(const std::vector<PromptPiece>& pieces,
                             std::size_t begin,
                             std::size_t end) {
  std::vector<PromptPiece> part;
  std::size_t at = 0;
  for (const PromptPiece& piece : pieces) {
    const std::size_t first = std::max(begin, at);
    const std::size_t last = std::min(end, at + piece.text.size());
    if (first < last) {
      part.push_back({piece.text.substr(first - at, last - first), piece.engine_made});
    }
    at += piece.text.size();
  }
  return part;
}

void append(EncodedSample& sample, const std::vector<int32_t>& ids, float weight) {
  sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
  sample.weights.insert(sample.weights.end(), ids.size(), weight);
}

struct TurnBegin {
  std::size_t text_begin = 0;
  float weight = 0.0F;
};

Status refused(std::size_t message, const char* reason) {
  const std::string param = fmt::format("messages[{}]", message);
  return Status::invalid(fmt::format("{}: {}", param, reason), param);
}

}  // namespace

Result<EncodedSample> encode_chat(std::span<const ChatMessage> messages,
                                  const std::vector<bool>& trained,
                                  const text::Tokenizer& tokenizer,
                                  const ChatSampleOptions& options) {
  text::RenderOptions render;
  render.profile = options.profile;
  render.drop_thinking = options.drop_thinking;
  render.thinking = options.thinking == ThinkingMode::kOn ||
                    (options.thinking == ThinkingMode::kAuto && wants_thinking(messages));
  const Result<text::RenderedPrompt> whole = text::render_messages(messages, render);
  if (!whole.ok()) {
    return whole.status();
  }
  const std::vector<PromptPiece>& pieces = whole->pieces;
  const std::string text = whole->text();

  bool has_tools = false;
  for (const ChatMessage& message : messages) {
    has_tools = has_tools || !message.functions.empty();
  }
  const bool only_last = render.thinking && options.drop_thinking && !has_tools;
  const std::size_t first_trained = only_last ? last_asking(messages) : 0;
  std::vector<TurnBegin> turns = {{0, options.other_weight}};
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Role role = messages[i].role;
    if (i > 0 && is_user_side(role) && is_user_side(messages[i - 1].role)) {
      continue;  // one turn of the user
    }
    // The text from this turn on: the whole text ends with it.
    render.context = messages.first(i);
    const Result<text::RenderedPrompt> tail = text::render_messages(messages.subspan(i), render);
    if (!tail.ok()) {
      return tail.status();
    }
    if (i > 0 && !text.ends_with(tail->text())) {
      return refused(i, "the turn cannot be found in the rendered conversation");
    }
    const bool counts = options.trained_roles.contains(role) && i >= first_trained &&
                        (trained.empty() || trained[i]);
    turns.push_back(
        {i == 0 ? 0 : text.size() - length_of(tail->pieces), counts ? 1.0F : options.other_weight});
  }
  turns.push_back({text.size(), 0.0F});

  EncodedSample sample;
  for (std::size_t k = 0; k + 1 < turns.size(); ++k) {
    append(sample,
           tokenizer.encode(cut(pieces, turns[k].text_begin, turns[k + 1].text_begin)),
           turns[k].weight);
  }
  if (sample.ids != tokenizer.encode(pieces)) {
    return refused(0, "a turn does not begin at a token of its own");
  }
  return sample;
}

EncodedSample encode_completion(const std::string& prompt,
                                const std::string& completion,
                                const text::Tokenizer& tokenizer,
                                float other_weight) {
  EncodedSample sample;
  if (tokenizer.bos_id() >= 0) {
    append(sample, {tokenizer.bos_id()}, 0.0F);
  }
  append(sample, tokenizer.encode(prompt), other_weight);
  append(sample, tokenizer.encode(completion), 1.0F);
  if (tokenizer.eos_id() >= 0) {
    append(sample, {tokenizer.eos_id()}, 1.0F);
  }
  return sample;
}

}  // namespace baleen::train
