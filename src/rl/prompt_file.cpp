#include <algorithm>
#include <charconv>
#include <fstream>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"
#include "rl/prompt_source.h"
#include "text/tokenizer.h"
#include "train/data_order.h"

namespace baleen::rl {
namespace {

namespace json = boost::json;

struct Slice {
  std::string path;
  int64_t begin = 0;
  int64_t end = -1;  // -1: to the last line
};

[[noreturn]] void bad_slice(const std::string& text) {
  throw ConfigError(
      fmt::format("prompt_data: \"{}\": a slice reads FILE@[A:B], either may be left out", text));
}

int64_t slice_number(std::string_view text, int64_t fallback, const std::string& whole) {
  if (text.empty()) {
    return fallback;
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) {
    bad_slice(whole);
  }
  return value;
}

Slice parse_slice(const std::string& text) {
  const std::size_t at = text.rfind("@[");
  if (at == std::string::npos) {
    return {.path = text};
  }
  const std::string_view inner = std::string_view(text).substr(at + 2);
  const std::size_t colon = inner.find(':');
  if (colon == std::string_view::npos || !inner.ends_with(']')) {
    bad_slice(text);
  }
  return {.path = text.substr(0, at),
          .begin = slice_number(inner.substr(0, colon), 0, text),
          .end = slice_number(inner.substr(colon + 1, inner.size() - colon - 2), -1, text)};
}

std::string text_of(const json::object& line, const std::string& key, const std::string& where) {
  const json::value* value = line.if_contains(key);
  if (value == nullptr) {
    throw ConfigError(fmt::format("{}: no key \"{}\"", where, key));
  }
  if (value->is_string()) {
    return std::string(value->as_string());
  }
  if (value->is_number()) {
    return json::serialize(*value);
  }
  throw ConfigError(fmt::format("{}: \"{}\" is neither a string nor a number", where, key));
}

/// What a user says, or a list of messages.
std::vector<text::ChatMessage> messages_of(const json::object& line,
                                           const std::string& key,
                                           const std::string& where) {
  const json::value* value = line.if_contains(key);
  const json::array* list = value == nullptr ? nullptr : value->if_array();
  std::vector<text::ChatMessage> messages;
  if (list == nullptr) {
    messages.emplace_back().content = text_of(line, key, where);
    return messages;
  }
  for (const json::value& entry : *list) {
    const json::object* object = entry.if_object();
    const json::value* role = object == nullptr ? nullptr : object->if_contains("role");
    const auto known = role != nullptr && role->is_string()
                           ? text::parse_role(std::string_view(role->as_string()))
                           : std::nullopt;
    if (!known) {
      throw ConfigError(fmt::format("{}: \"{}\": every message needs a known role", where, key));
    }
    text::ChatMessage& message = messages.emplace_back();
    message.role = *known;
    message.content = text_of(*object, "content", where);
  }
  return messages;
}

class FilePrompts final : public PromptSource {
 public:
  FilePrompts(const std::vector<std::string>& train_files,
              const std::vector<std::string>& eval_files,
              const text::Tokenizer& tokenizer,
              PromptFileOptions options)
      : tokenizer_(tokenizer), options_(std::move(options)) {
    for (const std::string& file : train_files) {
      read(parse_slice(file), train_);
    }
    for (const std::string& file : eval_files) {
      read(parse_slice(file), eval_);
    }
    if (train_.empty()) {
      throw ConfigError(
          fmt::format("prompt_data: no prompt is left ({} were too long)", too_long_));
    }
  }

  Prompt prompt(int64_t number) const override {
    const auto count = static_cast<int64_t>(train_.size());
    const int64_t place =
        options_.shuffle ? train::drawn_sample(options_.seed, count, number) : number % count;
    Prompt prompt = train_[static_cast<std::size_t>(place)];
    prompt.number = number;
    return prompt;
  }
  int64_t epoch_size() const override { return static_cast<int64_t>(train_.size()); }
  Prompt evaluation_prompt(int64_t number) const override {
    return eval_[static_cast<std::size_t>(number)];
  }
  int64_t num_evaluation_prompts() const override { return static_cast<int64_t>(eval_.size()); }
  std::string digest() const override {
    return fmt::format("{} prompts, {:016x}", train_.size(), digest_);
  }

 private:
  void read(const Slice& slice, std::vector<Prompt>& prompts) {
    std::ifstream stream(slice.path, std::ios::binary);
    if (!stream) {
      throw ConfigError(fmt::format("prompt_data: {} cannot be opened", slice.path));
    }
    std::string line;
    for (int64_t number = 0; std::getline(stream, line); ++number) {
      if (number < slice.begin || (slice.end >= 0 && number >= slice.end) || line.empty()) {
        continue;
      }
      add(line, fmt::format("{}:{}", slice.path, number + 1), prompts);
    }
  }

  void add(const std::string& line, const std::string& where, std::vector<Prompt>& prompts) {
    json::error_code error;
    const json::value value = json::parse(line, error);
    const json::object* object = error ? nullptr : value.if_object();
    if (object == nullptr) {
      throw ConfigError(where + ": not a JSON object");
    }
    Prompt prompt;
    prompt.number = static_cast<int64_t>(prompts.size());
    std::vector<text::ChatMessage> messages;
    if (options_.chat) {
      messages = messages_of(*object, options_.input_key, where);
      prompt.text = messages.empty() ? "" : messages.back().content;
    } else {
      prompt.text = text_of(*object, options_.input_key, where);
    }
    if (!options_.label_key.empty()) {
      prompt.label = text_of(*object, options_.label_key, where);
    }
    if (const json::value* metadata = object->if_contains(options_.metadata_key)) {
      prompt.metadata = json::serialize(*metadata);
    }
    if (prompt.text.empty()) {
      throw ConfigError(where + ": the prompt is empty");
    }
    try {
      prompt.ids = options_.chat ? options_.chat->ids(messages, prompt.number)
                                 : tokenizer_.encode(prompt.text);
    } catch (const ConfigError& refused) {
      throw ConfigError(where + ": " + refused.what());
    }
    if (options_.max_prompt_tokens > 0 &&
        static_cast<int64_t>(prompt.ids.size()) > options_.max_prompt_tokens) {
      ++too_long_;
      return;
    }
    digest_ = XXH3_64bits_withSeed(line.data(), line.size(), digest_);
    prompts.push_back(std::move(prompt));
  }

  const text::Tokenizer& tokenizer_;
  PromptFileOptions options_;
  std::vector<Prompt> train_;
  std::vector<Prompt> eval_;
  int64_t too_long_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace

std::unique_ptr<PromptSource> file_prompts(const std::vector<std::string>& train_files,
                                           const std::vector<std::string>& eval_files,
                                           const text::Tokenizer& tokenizer,
                                           const PromptFileOptions& options) {
  return std::make_unique<FilePrompts>(train_files, eval_files, tokenizer, options);
}

}  // namespace baleen::rl
