#include "text/tokenizer_file.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "text/byte_symbols.h"

namespace baleen::text {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxTokenId = (int64_t{1} << 24) - 1;  // beyond any vocabulary; bounds memory

class Reader {
 public:
  Reader(const json::object& root, TokenizerFile& out) : root_(root), out_(out) {}

  void read() {
    only(root_,
         "",
         {"version",
          "truncation",
          "padding",
          "added_tokens",
          "normalizer",
          "pre_tokenizer",
          "post_processor",
          "decoder",
          "model"});
    must_be_null("truncation");
    must_be_null("padding");
    read_normalizer();
    read_post_processor();
    read_decoder();
    read_pre_tokenizer();
    read_model();
    read_added_tokens();
  }

 private:
  [[noreturn]] void fail(const std::string& entry, const std::string& text) const {
    throw ConfigError(fmt::format("{}: {}: {}", out_.name, entry, text));
  }

  void only(const json::object& object,
            const std::string& entry,
            std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : object) {
      if (std::find(known.begin(), known.end(), std::string_view(key)) == known.end()) {
        fail(entry.empty() ? std::string(key) : fmt::format("{}.{}", entry, std::string_view(key)),
             "this entry is not supported");
      }
    }
  }

  /// The value under `key`, or null when it is absent.
  static const json::value& get(const json::object& object, std::string_view key) {
    static const json::value kNull;
    const json::value* found = object.if_contains(key);
    return found == nullptr ? kNull : *found;
  }

  void must_be_null(std::string_view key) const {
    if (!get(root_, key).is_null()) {
      fail(std::string(key), "must be null; it would change token ids");
    }
  }

  const json::object& object_at(const json::value& value, const std::string& entry) const {
    if (!value.is_object()) {
      fail(entry, "must be an object");
    }
    return value.get_object();
  }

  const json::array& array_at(const json::object& object,
                              std::string_view key,
                              const std::string& entry) const {
    const json::value& value = get(object, key);
    if (!value.is_array()) {
      fail(entry, "must be a list");
    }
    return value.get_array();
  }

  std::string string_at(const json::object& object,
                        std::string_view key,
                        const std::string& entry) const {
    const json::value& value = get(object, key);
    if (!value.is_string()) {
      fail(fmt::format("{}.{}", entry, key), "must be a string");
    }
    return std::string(value.get_string());
  }

  /// A flag that must be off: false, null and absence are the same.
  void must_be_off(const json::object& object,
                   std::string_view key,
                   const std::string& entry) const {
    const json::value& value = get(object, key);
    if (!value.is_null() && !(value.is_bool() && !value.get_bool())) {
      fail(fmt::format("{}.{}", entry, key), "only false is supported");
    }
  }

  void read_normalizer() const {
    const json::value& value = get(root_, "normalizer");
    if (value.is_null()) {
      return;
    }
    const json::object& normalizer = object_at(value, "normalizer");
    if (string_at(normalizer, "type", "normalizer") != "Sequence" ||
        !array_at(normalizer, "normalizers", "normalizer.normalizers").empty()) {
      fail("normalizer", "only null or an empty Sequence is supported");
    }
  }

  void read_post_processor() const {
    const json::value& value = get(root_, "post_processor");
    if (!value.is_null() &&
        string_at(object_at(value, "post_processor"), "type", "post_processor") != "ByteLevel") {
      fail("post_processor.type", "only ByteLevel is supported: it adds no tokens");
    }
  }

  void read_decoder() const {
    const json::value& value = get(root_, "decoder");
    if (!value.is_null() &&
        string_at(object_at(value, "decoder"), "type", "decoder") != "ByteLevel") {
      fail("decoder.type", "only ByteLevel is supported");
    }
  }

  void read_pre_tokenizer() {
    const json::object& chain = object_at(get(root_, "pre_tokenizer"), "pre_tokenizer");
    const std::string type = string_at(chain, "type", "pre_tokenizer");
    if (type != "Sequence") {
      fail("pre_tokenizer.type", fmt::format("'{}' is not supported, only Sequence", type));
    }
    const json::array& steps = array_at(chain, "pretokenizers", "pre_tokenizer.pretokenizers");
    bool ends_in_bytes = false;
    for (size_t i = 0; i < steps.size(); ++i) {
      const std::string entry = fmt::format("pre_tokenizer.pretokenizers[{}]", i);
      const json::object& step = object_at(steps[i], entry);
      const std::string step_type = string_at(step, "type", entry);
      if (step_type == "Split") {
        read_split(step, entry);
      } else if (step_type == "ByteLevel") {
        only(step, entry, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
        if (!get(step, "add_prefix_space").is_bool() || !get(step, "use_regex").is_bool()) {
          fail(entry, "add_prefix_space and use_regex must both be false");  // absent means true
        }
        must_be_off(step, "add_prefix_space", entry);
        must_be_off(step, "use_regex", entry);
        ends_in_bytes = i + 1 == steps.size();
      } else {
        fail(entry + ".type",
             fmt::format("'{}' is not supported, only Split and ByteLevel", step_type));
      }
    }
    if (!ends_in_bytes) {
      fail("pre_tokenizer.pretokenizers", "the last step, and only it, must be ByteLevel");
    }
  }

  void read_split(const json::object& step, const std::string& entry) {
    only(step, entry, {"type", "pattern", "behavior", "invert"});
    must_be_off(step, "invert", entry);
    const std::string behavior = string_at(step, "behavior", entry);
    if (behavior != "Isolated") {
      fail(entry + ".behavior", fmt::format("'{}' is not supported, only Isolated", behavior));
    }
    const json::object& pattern = object_at(get(step, "pattern"), entry + ".pattern");
    only(pattern, entry + ".pattern", {"Regex"});
    out_.patterns.push_back(string_at(pattern, "Regex", entry + ".pattern"));
  }

  int32_t id_of(const json::value& value, const std::string& entry) const {
    if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() > kMaxTokenId) {
      fail(entry, fmt::format("the id must be a whole number from 0 to {}", kMaxTokenId));
    }
    return static_cast<int32_t>(value.get_int64());
  }

  void read_model() {
    const json::object& model = object_at(get(root_, "model"), "model");
    only(model,
         "model",
         {"type",
          "dropout",
          "unk_token",
          "continuing_subword_prefix",
          "end_of_word_suffix",
          "fuse_unk",
          "byte_fallback",
          "ignore_merges",
          "vocab",
          "merges"});
    const std::string type = string_at(model, "type", "model");
    if (type != "BPE") {
      fail("model.type", fmt::format("'{}' is not supported, only BPE", type));
    }
    for (const std::string_view key :
         {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const json::value& value = get(model, key);
      if (!value.is_null() && !(value.is_string() && value.get_string().empty())) {
        fail(fmt::format("model.{}", key), "only null is supported");
      }
    }
    for (const std::string_view key : {"fuse_unk", "byte_fallback", "ignore_merges"}) {
      must_be_off(model, key, "model");
    }
    const json::object& vocabulary = object_at(get(model, "vocab"), "model.vocab");
    for (const auto& [text, value] : vocabulary) {
      const int32_t id = id_of(value, fmt::format("model.vocab['{}']", std::string_view(text)));
      ids_.emplace(std::string(text), id);
    }
    read_byte_ids();
    const json::array& merges = array_at(model, "merges", "model.merges");
    out_.merges.reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      out_.merges.push_back(read_merge(merges[rank], rank));
    }
  }

  void read_byte_ids() {
    const auto& symbols = byte_symbols();
    for (size_t byte = 0; byte < symbols.size(); ++byte) {
      const auto found = ids_.find(symbols[byte]);
      if (found == ids_.end()) {
        fail("model.vocab",
             fmt::format("byte 0x{:02X} has no entry (expected '{}')", byte, symbols[byte]));
      }
      out_.byte_ids[byte] = found->second;
    }
  }

  MergeRule read_merge(const json::value& value, size_t rank) const {
    std::string left;
    std::string right;
    if (value.is_string()) {
      const std::string_view both = value.get_string();
      const size_t gap = both.find(' ');
      if (gap != std::string_view::npos && both.find(' ', gap + 1) == std::string_view::npos) {
        left = both.substr(0, gap);
        right = both.substr(gap + 1);
      }
    } else if (value.is_array() && value.get_array().size() == 2 &&
               value.get_array()[0].is_string() && value.get_array()[1].is_string()) {
      left = value.get_array()[0].get_string();
      right = value.get_array()[1].get_string();
    }
    const std::string entry = fmt::format("model.merges[{}]", rank);
    if (left.empty() || right.empty()) {
      fail(entry, "must be 'left right' or a pair of strings");
    }
    const auto id = [&](const std::string& text) {
      const auto found = ids_.find(text);
      if (found == ids_.end()) {
        fail(entry, fmt::format("'{}' is not in model.vocab", text));
      }
      return found->second;
    };
    return {id(left), id(right), id(left + right)};
  }

  void read_added_tokens() {
    const json::array& tokens = array_at(root_, "added_tokens", "added_tokens");
    std::unordered_map<std::string, int32_t> seen;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string entry = fmt::format("added_tokens[{}]", i);
      const json::object& token = object_at(tokens[i], entry);
      only(token,
           entry,
           {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      for (const std::string_view key : {"single_word", "lstrip", "rstrip"}) {
        must_be_off(token, key, entry);
      }
      const std::string content = string_at(token, "content", entry);
      const int32_t id = id_of(get(token, "id"), entry + ".id");
      const auto in_vocabulary = ids_.find(content);
      if (content.empty() || !seen.emplace(content, id).second) {
        fail(entry, fmt::format("'{}' is empty or given twice", content));
      }
      if (in_vocabulary != ids_.end() && in_vocabulary->second != id) {
        fail(entry,
             fmt::format(
                 "'{}' has id {} here and {} in model.vocab", content, id, in_vocabulary->second));
      }
      const json::value& special = get(token, "special");
      out_.added.push_back({id, content, special.is_bool() && special.get_bool()});
      ids_.erase(content);
    }
    for (auto& [text, id] : ids_) {
      std::optional<std::string> bytes = bytes_of_symbols(text);
      if (!bytes || bytes->empty()) {
        fail(fmt::format("model.vocab['{}']", text), "is not written in byte symbols");
      }
      out_.words.push_back({id, std::move(*bytes), false});
    }
  }

  const json::object& root_;
  TokenizerFile& out_;
  std::unordered_map<std::string, int32_t> ids_;  // model.vocab, later without the added tokens
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text, const std::string& name) {
  json::monotonic_resource memory;
  boost::system::error_code error;
  const json::value root = json::parse(text, error, &memory);
  if (error) {
    throw ConfigError(fmt::format("{}: not JSON: {}", name, error.message()));
  }
  if (!root.is_object()) {
    throw ConfigError(fmt::format("{}: must be an object", name));
  }
  TokenizerFile file;
  file.name = name;
  Reader(root.get_object(), file).read();
  return file;
}

}  // namespace baleen::text
