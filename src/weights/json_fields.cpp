#include "weights/json_fields.h"

#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::weights {

namespace json = boost::json;

json::object parse_json_object(const std::string& text, const std::string& where) {
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  if (error) {
    throw ConfigError(fmt::format("{}: not valid JSON: {}", where, error.message()));
  }
  if (!value.is_object()) {
    throw ConfigError(fmt::format("{}: expected a JSON object", where));
  }
  return std::move(value.get_object());
}

JsonFields::JsonFields(const json::object& object,
                       std::string where,
                       const std::multimap<std::string, std::string>& aliases)
    : object_(object), where_(std::move(where)) {
  for (const auto& [alias, key] : aliases) {
    const json::value* value = object_.if_contains(alias);
    if (value == nullptr) {
      continue;
    }
    used_.emplace(alias);
    const auto [place, first] = spelling_.emplace(key, alias);
    const std::string& other = first ? key : place->second;
    const json::value* twin = object_.if_contains(other);
    if (twin != nullptr && *twin != *value) {
      refuse(key, fmt::format("{} and {} are two spellings with different values", other, alias));
    }
  }
}

void JsonFields::refuse(std::string_view key, std::string_view reason) const {
  throw ConfigError(fmt::format("{}: {}: {}", where_, key, reason));
}

const json::value* JsonFields::find(std::string_view key) {
  used_.emplace(key);
  const json::value* value = object_.if_contains(key);
  if (value == nullptr) {
    const auto other = spelling_.find(key);
    value = other == spelling_.end() ? nullptr : object_.if_contains(other->second);
  }
  return value != nullptr && value->is_null() ? nullptr : value;
}

int64_t JsonFields::as_integer(std::string_view key, const json::value& value) const {
  if (value.is_int64()) {
    return value.get_int64();
  }
  if (value.is_double()) {
    const double number = value.get_double();
    if (std::abs(number) < 0x1p53 && number == std::floor(number)) {
      return static_cast<int64_t>(number);
    }
  }
  refuse(key, fmt::format("expected an integer, got {}", json::serialize(value)));
}

int64_t JsonFields::integer(std::string_view key, std::optional<int64_t> fallback) {
  const json::value* value = find(key);
  if (value != nullptr) {
    return as_integer(key, *value);
  }
  if (!fallback) {
    refuse(key, "the key is missing");
  }
  return *fallback;
}

double JsonFields::number(std::string_view key, std::optional<double> fallback) {
  const json::value* value = find(key);
  if (value == nullptr) {
    if (!fallback) {
      refuse(key, "the key is missing");
    }
    return *fallback;
  }
  if (!value->is_number()) {
    refuse(key, fmt::format("expected a number, got {}", json::serialize(*value)));
  }
  return value->to_number<double>();
}

std::optional<std::string> JsonFields::text(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    refuse(key, fmt::format("expected a string, got {}", json::serialize(*value)));
  }
  return std::string(value->get_string());
}

std::vector<int64_t> JsonFields::integers(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr || !value->is_array()) {
    refuse(key, "expected a list of integers");
  }
  std::vector<int64_t> out;
  for (const json::value& item : value->get_array()) {
    out.push_back(as_integer(key, item));
  }
  return out;
}

std::vector<std::string> JsonFields::texts(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr || !value->is_array()) {
    refuse(key, "expected a list of strings");
  }
  std::vector<std::string> out;
  for (const json::value& item : value->get_array()) {
    if (!item.is_string()) {
      refuse(key, fmt::format("expected a string, got {}", json::serialize(item)));
    }
    out.emplace_back(item.get_string());
  }
  return out;
}

const json::object* JsonFields::object(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) {
    return nullptr;
  }
  if (!value->is_object()) {
    refuse(key, fmt::format("expected an object, got {}", json::serialize(*value)));
  }
  return &value->get_object();
}

void JsonFields::expect(std::string_view key, const json::value& value) {
  const json::value* found = find(key);
  if (found != nullptr && *found != value) {
    refuse(key,
           fmt::format(
               "only {} is supported, got {}", json::serialize(value), json::serialize(*found)));
  }
}

std::vector<std::string> JsonFields::unused() const {
  std::vector<std::string> out;
  for (const auto& member : object_) {
    if (!used_.contains(std::string_view(member.key()))) {
      out.emplace_back(member.key());
    }
  }
  return out;
}

}  // namespace baleen::weights
