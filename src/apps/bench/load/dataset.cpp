#include "apps/bench/load/dataset.h"

#include <fstream>
#include <iterator>
#include <optional>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/error.h"

namespace baleen::apps {
namespace {

namespace json = boost::json;

std::optional<std::string> text_at(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_string()) {
    return std::nullopt;
  }
  return std::string(value->as_string());
}

/// Adds one message of the file; false where it has not the form.
bool add_message(const json::value& value,
                 const char* role_key,
                 const char* text_key,
                 LoadConversation& out) {
  if (!value.is_object()) {
    return false;
  }
  const std::optional<std::string> role = text_at(value.as_object(), role_key);
  std::optional<std::string> text = text_at(value.as_object(), text_key);
  if (!role || !text) {
    return false;
  }
  if (*role == "user" || *role == "human") {
    out.turns.push_back({.text = std::move(*text)});
  } else if (*role == "system") {
    out.system = std::move(*text);
  }
  return true;
}

LoadConversation read_entry(const json::value& value, const std::string& where) {
  LoadConversation out;
  bool good = value.is_object();
  if (good) {
    const json::object& object = value.as_object();
    const json::value* messages = object.if_contains("messages");
    const json::value* talk = object.if_contains("conversations");
    if (std::optional<std::string> prompt = text_at(object, "prompt")) {
      out.turns.push_back({.text = std::move(*prompt)});
    } else if (messages != nullptr && messages->is_array()) {
      for (const json::value& message : messages->as_array()) {
        good = good && add_message(message, "role", "content", out);
      }
    } else if (talk != nullptr && talk->is_array()) {
      for (const json::value& message : talk->as_array()) {
        good = good && add_message(message, "from", "value", out);
      }
    }
    if (const json::value* tokens = object.if_contains("answer_tokens")) {
      good = good && tokens->is_int64() && tokens->as_int64() > 0 && tokens->as_int64() < 1 << 24;
      for (LoadTurn& turn : out.turns) {
        turn.answer_tokens = good ? static_cast<int32_t>(tokens->as_int64()) : 0;
      }
    }
  }
  if (!good || out.turns.empty()) {
    throw ConfigError(fmt::format(
        "{}: needs \"prompt\", or \"messages\" with role and content, or \"conversations\" with "
        "from and value, and a user's turn among them",
        where));
  }
  return out;
}

}  // namespace

std::vector<LoadConversation> read_dataset(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw SystemError("cannot read " + file);
  }
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  std::vector<LoadConversation> out;
  const size_t begin = text.find_first_not_of(" \t\r\n");
  boost::system::error_code error;
  if (begin != std::string::npos && text[begin] == '[') {
    const json::value all = json::parse(text, error);
    if (error || !all.is_array()) {
      throw ConfigError(fmt::format("{} is no JSON array: {}", file, error.message()));
    }
    for (const json::value& entry : all.as_array()) {
      out.push_back(read_entry(entry, fmt::format("{} entry {}", file, out.size() + 1)));
    }
  } else {
    int64_t number = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line = std::string_view(text).substr(at, end - at);
      at = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
        continue;
      }
      const json::value entry = json::parse(json::string_view(line.data(), line.size()), error);
      const std::string where = fmt::format("{} line {}", file, number);
      if (error) {
        throw ConfigError(fmt::format("{} is no JSON: {}", where, error.message()));
      }
      out.push_back(read_entry(entry, where));
    }
  }
  if (out.empty()) {
    throw ConfigError(file + " has no entry");
  }
  return out;
}

}  // namespace baleen::apps
