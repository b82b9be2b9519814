#include "abacus/phrases.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/error.h"

namespace baleen::abacus {
namespace {

namespace json = boost::json;

bool has_chinese(std::string_view text) {
  // Bytes E4–E9 start the ideographs U+4000–U+9FFF.
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0xE4 && byte <= 0xE9;
  });
}

std::vector<Phrase> read_group(const json::object& root, const char* key) {
  std::vector<Phrase> phrases;
  for (const json::value& value : root.at(key).as_array()) {
    const json::object& entry = value.as_object();
    Phrase phrase;
    phrase.text = entry.at("text").as_string().c_str();
    phrase.weight = static_cast<int>(entry.at("weight").as_int64());
    if (const json::value* operation = entry.if_contains("op")) {
      phrase.operation = operation->as_string().at(0);
    }
    if (const json::value* what = entry.if_contains("what")) {
      phrase.about_first = what->as_string() == "first";
    }
    phrase.chinese = has_chinese(phrase.text);
    phrases.push_back(std::move(phrase));
  }
  return phrases;
}

}  // namespace

Phrases read_phrases(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw ConfigError(fmt::format("{}: cannot be opened", path));
  }
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  try {
    const json::value document = json::parse(text);
    const json::object& root = document.as_object();
    Phrases phrases;
    for (Phrase& phrase : read_group(root, "questions")) {
      (phrase.operation == '+' ? phrases.sums : phrases.differences).push_back(std::move(phrase));
    }
    phrases.follow_ups = read_group(root, "follow_ups");
    phrases.recalls = read_group(root, "recalls");
    phrases.systems = read_group(root, "systems");
    for (const json::value& value : root.at("small_talk").as_array()) {
      SmallTalk talk;
      talk.answer = value.as_object().at("answer").as_string().c_str();
      for (const json::value& said : value.as_object().at("texts").as_array()) {
        talk.texts.emplace_back(said.as_string().c_str());
      }
      talk.chinese = has_chinese(talk.answer);
      phrases.small_talk.push_back(std::move(talk));
    }
    phrases.effort_max = root.at("effort_max").as_string().c_str();
    return phrases;
  } catch (const std::exception& fault) {
    throw ConfigError(fmt::format("{}: {}", path, fault.what()));
  }
}

const Phrase& pick(const std::vector<Phrase>& phrases, Draws& draws) {
  int total = 0;
  for (const Phrase& phrase : phrases) {
    total += phrase.weight;
  }
  int left = draws.below(total);
  for (const Phrase& phrase : phrases) {
    left -= phrase.weight;
    if (left < 0) {
      return phrase;
    }
  }
  return phrases.back();
}

std::string fill_in(std::string_view text, int a, int b) {
  std::string filled;
  filled.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' && i + 2 < text.size() && text[i + 2] == '}') {
      filled += std::to_string(text[i + 1] == 'a' ? a : b);
      i += 2;
    } else {
      filled += text[i];
    }
  }
  return filled;
}

}  // namespace baleen::abacus
