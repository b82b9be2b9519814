#include "text/json_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include <boost/json/basic_parser_impl.hpp>
#include <fmt/format.h>

namespace baleen::text {
namespace {

constexpr size_t kMaxDepth = 500;

/// What RFC 8259 calls white space.
constexpr std::string_view kJsonSpace = " \t\r\n";

std::string integer_text(std::string_view digits) {
  return digits == "-0" ? "0" : std::string(digits);  // an integer has no negative zero
}

double to_double(const std::string& digits) {
  double value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  // Out of range leaves the value alone; strtod gives the infinity or zero that is meant.
  return result.ec == std::errc() ? value : std::strtod(digits.c_str(), nullptr);
}

/// Receives the parts of a text from Boost.JSON's parser and builds the tree. Its own value type
/// would turn integers beyond 64 bits into doubles.
class TreeBuilder {
 public:
  static constexpr size_t max_object_size = SIZE_MAX;
  static constexpr size_t max_array_size = SIZE_MAX;
  static constexpr size_t max_key_size = SIZE_MAX;
  static constexpr size_t max_string_size = SIZE_MAX;
  using error_code = boost::system::error_code;
  using string_view = boost::json::string_view;

  JsonValue take_root() { return std::move(root_); }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) { return open(JsonValue::Kind::kObject); }
  bool on_array_begin(error_code&) { return open(JsonValue::Kind::kArray); }
  bool on_array_end(size_t, error_code&) { return close(); }
  bool on_object_end(size_t, error_code&) {
    merge_duplicates(open_.back());
    return close();
  }
  bool on_key_part(string_view part, size_t, error_code&) { return collect(part); }
  bool on_key(string_view part, size_t, error_code&) {
    collect(part);
    keys_.push_back(std::exchange(collected_, {}));
    return true;
  }
  bool on_string_part(string_view part, size_t, error_code&) { return collect(part); }
  bool on_string(string_view part, size_t, error_code&) {
    collect(part);
    return add_scalar(JsonValue::Kind::kString, std::exchange(collected_, {}));
  }
  bool on_number_part(string_view part, error_code&) { return collect(part); }
  bool on_int64(int64_t, string_view part, error_code&) { return add_number(part); }
  bool on_uint64(uint64_t, string_view part, error_code&) { return add_number(part); }
  bool on_double(double, string_view part, error_code&) { return add_number(part); }
  bool on_bool(bool value, error_code&) {
    return add_scalar(JsonValue::Kind::kBool, value ? "true" : "false");
  }
  bool on_null(error_code&) { return add_scalar(JsonValue::Kind::kNull, "null"); }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

 private:
  bool collect(string_view part) {
    collected_.append(part.data(), part.size());
    return true;
  }

  bool open(JsonValue::Kind kind) {
    open_.emplace_back().kind = kind;
    return true;
  }

  bool close() {
    JsonValue value = std::move(open_.back());
    open_.pop_back();
    add(std::move(value));
    return true;
  }

  bool add_number(string_view part) {
    collect(part);
    const std::string digits = std::exchange(collected_, {});
    return digits.find_first_of(".eE") == std::string::npos
               ? add_scalar(JsonValue::Kind::kInteger, integer_text(digits))
               : add_scalar(JsonValue::Kind::kFloat, json_float_text(to_double(digits)));
  }

  bool add_scalar(JsonValue::Kind kind, std::string text) {
    JsonValue value;
    value.kind = kind;
    value.text = std::move(text);
    add(std::move(value));
    return true;
  }

  void add(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().kind == JsonValue::Kind::kArray) {
      open_.back().items.push_back(std::move(value));
    } else {
      open_.back().members.push_back({std::move(keys_.back()), std::move(value)});
      keys_.pop_back();
    }
  }

  static void merge_duplicates(JsonValue& object) {
    std::unordered_map<std::string, size_t> place_of;
    std::vector<JsonMember> merged;
    for (JsonMember& member : object.members) {
      const auto [place, is_new] = place_of.emplace(member.key, merged.size());
      if (is_new) {
        merged.push_back(std::move(member));
      } else {
        merged[place->second].value = std::move(member.value);
      }
    }
    object.members = std::move(merged);
  }

  JsonValue root_;
  std::vector<JsonValue> open_;    // containers not closed yet, outermost first
  std::vector<std::string> keys_;  // of the members being read in open_
  std::string collected_;          // parts of the current string, key or number
};

void append_value(std::string& out, const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kString:
      out += '"';
      append_json_escaped(out, value.text);
      out += '"';
      break;
    case JsonValue::Kind::kArray: {
      out += '[';
      std::string_view separator;
      for (const JsonValue& item : value.items) {
        out += separator;
        append_value(out, item);
        separator = ", ";
      }
      out += ']';
      break;
    }
    case JsonValue::Kind::kObject: {
      out += '{';
      std::string_view separator;
      for (const JsonMember& member : value.members) {
        out += separator;
        out += json_string(member.key);
        out += ": ";
        append_value(out, member.value);
        separator = ", ";
      }
      out += '}';
      break;
    }
    case JsonValue::Kind::kNull:
      out += "null";
      break;
    default:
      out += value.text;
  }
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const JsonMember& member : members) {
    if (member.key == key) {
      return &member.value;
    }
  }
  return nullptr;
}

std::optional<JsonValue> parse_json(std::string_view text, std::string* error) {
  const size_t begin = text.find_first_not_of(kJsonSpace);
  const size_t end = text.find_last_not_of(kJsonSpace);
  text = begin == std::string_view::npos ? std::string_view() : text.substr(begin, end - begin + 1);
  boost::json::parse_options options;
  options.max_depth = kMaxDepth;
  boost::json::basic_parser<TreeBuilder> parser(options);
  boost::system::error_code code;
  const size_t num_read = parser.write_some(false, text.data(), text.size(), code);
  if (!code && num_read < text.size()) {
    code = boost::json::make_error_code(boost::json::error::extra_data);
  }
  if (code) {
    if (error != nullptr) {
      *error = code.message();
    }
    return std::nullopt;
  }
  return parser.handler().take_root();
}

std::string json_text(const JsonValue& value) {
  std::string out;
  append_value(out, value);
  return out;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(out, text);
  out += '"';
  return out;
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

std::string json_float_text(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value < 0 ? "-Infinity" : "Infinity";
  }
  std::array<char, 32> buffer{};
  const auto written = std::to_chars(
      buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string_view shortest(buffer.data(), static_cast<size_t>(written.ptr - buffer.data()));
  const size_t e = shortest.find('e');
  int exponent = 0;
  const bool plus = shortest[e + 1] == '+';
  std::from_chars(
      shortest.data() + e + (plus ? 2 : 1), shortest.data() + shortest.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    return std::string(shortest);  // same form of exponent: a sign, at least two digits
  }
  const bool negative = shortest[0] == '-';
  std::string digits;
  for (const char c : shortest.substr(0, e)) {
    if (c >= '0' && c <= '9') {
      digits += c;
    }
  }
  std::string out = negative ? "-" : "";
  if (exponent < 0) {
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    return out + digits + std::string(whole - digits.size(), '0') + ".0";
  }
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace baleen::text
