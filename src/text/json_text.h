#pragma once
// JSON text as the chat format writes it (Python's json.dumps style): separators ", " and ": ",
// keys in input order, non-ASCII as it is, integers with all their digits, floats in their shortest
// round-trip form with ".0" or an exponent. Pure, any thread.
//
//   std::optional<JsonValue> value = parse_json(R"({"id":12345678901234567890,"x":1.50})");
//   json_text(*value)  // {"id": 12345678901234567890, "x": 1.5}

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baleen::text {

struct JsonMember;

/// A parsed value that still knows the digits of its numbers.
struct JsonValue {
  enum class Kind : uint8_t { kNull, kBool, kInteger, kFloat, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  std::string text;                 // strings: the characters; other scalars: as they are printed
  std::vector<JsonValue> items;     // of an array
  std::vector<JsonMember> members;  // of an object; no key twice: position of the first, last value

  bool is_object() const { return kind == Kind::kObject; }
  bool is_string() const { return kind == Kind::kString; }
  /// The member called `key`, or null; null for other kinds too.
  const JsonValue* find(std::string_view key) const;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

/// Nothing when `text` is not one JSON value (RFC 8259; at most 500 levels deep). `error` then says
/// why, if given.
std::optional<JsonValue> parse_json(std::string_view text, std::string* error = nullptr);

std::string json_text(const JsonValue& value);

/// `text` as a JSON string, with or without the quotes. Escaped are `"`, `\` and what is below
/// 0x20.
std::string json_string(std::string_view text);
void append_json_escaped(std::string& out, std::string_view text);

/// A double as Python's repr prints it.
std::string json_float_text(double value);

}  // namespace baleen::text
