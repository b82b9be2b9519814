#include "weights/json_text.h"

#include <cmath>

#include <fmt/format.h>

namespace baleen::weights {
namespace {

namespace json = boost::json;

std::string number_text(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? fmt::format("{:.1f}", value)
                                                              : fmt::format("{}", value);
}

void append_value(const json::value& value, std::string& out) {
  if (value.is_double()) {
    out += number_text(value.get_double());
  } else if (value.is_object()) {
    out += "{";
    bool first = true;
    for (const auto& member : value.get_object()) {
      out += first ? "" : ", ";
      out += json::serialize(json::value(member.key())) + ": ";
      append_value(member.value(), out);
      first = false;
    }
    out += "}";
  } else if (value.is_array()) {
    out += "[";
    bool first = true;
    for (const json::value& item : value.get_array()) {
      out += first ? "" : ", ";
      append_value(item, out);
      first = false;
    }
    out += "]";
  } else {
    out += json::serialize(value);
  }
}

}  // namespace

std::string json_object_text(const json::object& object) {
  std::string out = "{\n";
  bool first = true;
  for (const auto& member : object) {
    out += first ? "  " : ",\n  ";
    out += json::serialize(json::value(member.key())) + ": ";
    append_value(member.value(), out);
    first = false;
  }
  return out + "\n}\n";
}

}  // namespace baleen::weights
