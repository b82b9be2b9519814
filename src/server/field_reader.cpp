#include "server/field_reader.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "server/echo.h"
#include "server/json_input.h"

namespace baleen::server {
namespace {

std::optional<int64_t> as_integer(const json::value& value) {
  if (value.is_int64()) {
    return value.get_int64();
  }
  // Some clients write every number with a fraction.
  if (value.is_double() && std::abs(value.get_double()) < 9e15 &&
      std::trunc(value.get_double()) == value.get_double()) {
    return static_cast<int64_t>(value.get_double());
  }
  return std::nullopt;
}

}  // namespace

std::string child_path(std::string_view path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

std::string element_path(std::string_view path, size_t index) {
  return fmt::format("{}[{}]", path, index);
}

FieldReader::FieldReader(const json::object& object, std::string path, Status& status)
    : object_(object), path_(std::move(path)), status_(status) {}

void FieldReader::fail(std::string_view name, std::string message, std::string api_code) {
  if (status_.ok()) {
    const std::string path = shortened(path_of(name));
    status_ = Status::invalid(fmt::format("{}: {}", path, message), path, std::move(api_code));
  }
}

const json::value* FieldReader::value(std::string_view name) {
  seen_.emplace(name);
  if (!status_.ok()) {
    return nullptr;
  }
  const json::value* found = object_.if_contains(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

const json::value* FieldReader::wrong_kind(std::string_view name,
                                           const char* expected,
                                           const json::value& value) {
  fail(name, fmt::format("must be {}, is {}", expected, json_kind_name(value)));
  return nullptr;
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
  const json::value* found = value(name);
  if (found != nullptr && !found->is_bool()) {
    found = wrong_kind(name, "a boolean", *found);
  }
  return found != nullptr ? std::optional(found->get_bool()) : std::nullopt;
}

std::optional<int64_t> FieldReader::integer(std::string_view name, int64_t min, int64_t max) {
  const json::value* found = value(name);
  if (found == nullptr) {
    return std::nullopt;
  }
  const std::optional<int64_t> number = as_integer(*found);
  if (!number && !found->is_uint64()) {
    wrong_kind(name, "an integer", *found);
    return std::nullopt;
  }
  if (!number || *number < min || *number > max) {
    fail(name,
         max == std::numeric_limits<int64_t>::max()
             ? fmt::format("must be an integer of at least {}, is {}", min, shown(*found))
             : fmt::format("must be an integer in {} .. {}, is {}", min, max, shown(*found)));
    return std::nullopt;
  }
  return number;
}

std::optional<double> FieldReader::number(std::string_view name) {
  const json::value* found = value(name);
  if (found == nullptr) {
    return std::nullopt;
  }
  if (!found->is_number()) {
    wrong_kind(name, "a number", *found);
    return std::nullopt;
  }
  const double number = found->to_number<double>();
  if (!std::isfinite(number)) {
    fail(name, "must be a finite number");
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> FieldReader::string(std::string_view name) {
  const json::value* found = value(name);
  if (found != nullptr && !found->is_string()) {
    found = wrong_kind(name, "a string", *found);
  }
  return found != nullptr ? std::optional(std::string(found->get_string())) : std::nullopt;
}

const json::object* FieldReader::object(std::string_view name) {
  const json::value* found = value(name);
  if (found != nullptr && !found->is_object()) {
    found = wrong_kind(name, "an object", *found);
  }
  return found != nullptr ? &found->get_object() : nullptr;
}

const json::object* FieldReader::object_at(std::string_view name,
                                           const json::value& element,
                                           size_t index) {
  if (!element.is_object()) {
    wrong_kind(element_path(name, index), "an object", element);
    return nullptr;
  }
  return &element.get_object();
}

const json::array* FieldReader::array(std::string_view name) {
  const json::value* found = value(name);
  if (found != nullptr && !found->is_array()) {
    found = wrong_kind(name, "an array", *found);
  }
  return found != nullptr ? &found->get_array() : nullptr;
}

std::optional<std::vector<std::string>> FieldReader::string_list(std::string_view name) {
  const json::value* found = value(name);
  if (found == nullptr) {
    return std::nullopt;
  }
  if (found->is_string()) {
    return std::vector{std::string(found->get_string())};
  }
  if (!found->is_array()) {
    wrong_kind(name, "a string or an array of strings", *found);
    return std::nullopt;
  }
  std::vector<std::string> list;
  for (size_t i = 0; i < found->get_array().size(); ++i) {
    const json::value& element = found->get_array()[i];
    if (!element.is_string()) {
      wrong_kind(element_path(name, i), "a string", element);
      return std::nullopt;
    }
    list.emplace_back(element.get_string());
  }
  return list;
}

std::optional<std::vector<int32_t>> FieldReader::integer_list(std::string_view name,
                                                              int32_t min,
                                                              int32_t max) {
  const json::array* found = array(name);
  if (found == nullptr) {
    return std::nullopt;
  }
  std::vector<int32_t> list;
  list.reserve(found->size());
  for (size_t i = 0; i < found->size(); ++i) {
    const std::optional<int64_t> number = as_integer((*found)[i]);
    if (!number || *number < min || *number > max) {
      fail(element_path(name, i),
           fmt::format("must be an integer in {} .. {}, is {}", min, max, shown((*found)[i])));
      return std::nullopt;
    }
    list.push_back(static_cast<int32_t>(*number));
  }
  return list;
}

void FieldReader::require(std::string_view name) {
  if (value(name) == nullptr) {
    fail(name, "is required");
  }
}

void FieldReader::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    seen_.emplace(name);
  }
}

void FieldReader::not_supported(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (value(name) != nullptr) {
      fail(name, "is not supported; leave it out or send null");
    }
  }
}

void FieldReader::only(std::string_view name, const json::value& accepted) {
  const json::value* found = value(name);
  if (found != nullptr && *found != accepted) {
    fail(name, fmt::format("{} is not supported; accepted: {}", shown(*found), shown(accepted)));
  }
}

void FieldReader::finish() {
  for (const auto& member : object_) {
    const std::string_view name(member.key().data(), member.key().size());
    if (!member.value().is_null() && !seen_.contains(name)) {
      fail(name, "unknown field");
      return;
    }
  }
}

}  // namespace baleen::server
