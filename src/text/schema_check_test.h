#pragma once
// For tests: whether a JSON value satisfies a schema, by the plain reading of the keywords that the
// tests use. Written from the specification, independent of any grammar. A keyword it does not know
// is a failure, so that a schema is never checked in part.
//
//   EXPECT_EQ(schema_fault(json::parse(schema), json::parse(answer)), "");

#include <cmath>
#include <cstdint>
#include <set>
#include <string>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

namespace baleen::text {

namespace schema_test {

namespace json = boost::json;

inline int64_t num_characters(const json::string& text) {
  int64_t count = 0;
  for (const char c : text) {
    count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  }
  return count;
}

inline bool has_type(const json::value& value, const json::value& type) {
  if (type.is_array()) {
    for (const json::value& one : type.get_array()) {
      if (has_type(value, one)) {
        return true;
      }
    }
    return false;
  }
  const std::string name(type.as_string());
  const bool is_integer =
      value.is_int64() || value.is_uint64() ||
      (value.is_double() && std::trunc(value.get_double()) == value.get_double());
  return (name == "null" && value.is_null()) || (name == "boolean" && value.is_bool()) ||
         (name == "string" && value.is_string()) || (name == "array" && value.is_array()) ||
         (name == "object" && value.is_object()) || (name == "integer" && is_integer) ||
         (name == "number" && value.is_number());
}

std::string fault(const json::value& root, const json::value& schema, const json::value& value);

inline std::string object_fault(const json::value& root,
                                const json::object& schema,
                                const json::object& value) {
  const json::value* properties = schema.if_contains("properties");
  const json::value* others = schema.if_contains("additionalProperties");
  if (const json::value* required = schema.if_contains("required")) {
    for (const json::value& name : required->as_array()) {
      if (!value.contains(name.as_string())) {
        return "lacks " + json::serialize(name);
      }
    }
  }
  for (const auto& member : value) {
    const json::value* declared =
        properties != nullptr ? properties->as_object().if_contains(member.key()) : nullptr;
    const json::value* rule = declared != nullptr ? declared : others;
    if (rule != nullptr) {
      const std::string inner = fault(root, *rule, member.value());
      if (!inner.empty()) {
        return std::string(member.key()) + ": " + inner;
      }
    }
  }
  return "";
}

inline std::string array_fault(const json::value& root,
                               const json::object& schema,
                               const json::array& value) {
  const auto count = static_cast<int64_t>(value.size());
  if (const json::value* least = schema.if_contains("minItems");
      least != nullptr && count < least->to_number<int64_t>()) {
    return "too few items";
  }
  if (const json::value* most = schema.if_contains("maxItems");
      most != nullptr && count > most->to_number<int64_t>()) {
    return "too many items";
  }
  if (const json::value* items = schema.if_contains("items")) {
    for (const json::value& item : value) {
      const std::string inner = fault(root, *items, item);
      if (!inner.empty()) {
        return "item: " + inner;
      }
    }
  }
  return "";
}

inline std::string scalar_fault(const json::object& schema, const json::value& value) {
  if (value.is_string()) {
    const int64_t length = num_characters(value.get_string());
    if (const json::value* least = schema.if_contains("minLength");
        least != nullptr && length < least->to_number<int64_t>()) {
      return "too short";
    }
    if (const json::value* most = schema.if_contains("maxLength");
        most != nullptr && length > most->to_number<int64_t>()) {
      return "too long";
    }
  }
  if (value.is_number()) {
    const double number = value.to_number<double>();
    if (const json::value* least = schema.if_contains("minimum");
        least != nullptr && number < least->to_number<double>()) {
      return "too small";
    }
    if (const json::value* most = schema.if_contains("maximum");
        most != nullptr && number > most->to_number<double>()) {
      return "too large";
    }
  }
  return "";
}

inline std::string fault(const json::value& root,
                         const json::value& schema,
                         const json::value& value) {
  if (schema.is_bool()) {
    return schema.get_bool() ? "" : "nothing is allowed here";
  }
  static const std::set<std::string> kKnown = {"type",
                                               "properties",
                                               "required",
                                               "additionalProperties",
                                               "items",
                                               "minItems",
                                               "maxItems",
                                               "minLength",
                                               "maxLength",
                                               "minimum",
                                               "maximum",
                                               "enum",
                                               "const",
                                               "anyOf",
                                               "$ref",
                                               "$defs",
                                               "title",
                                               "description"};
  const json::object& object = schema.as_object();
  for (const auto& member : object) {
    if (!kKnown.contains(std::string(member.key()))) {
      return "the test does not know " + std::string(member.key());
    }
  }
  if (const json::value* ref = object.if_contains("$ref")) {
    const std::string name(ref->as_string());  // #/$defs/NAME
    return fault(root, root.at("$defs").at(name.substr(name.rfind('/') + 1)), value);
  }
  if (const json::value* type = object.if_contains("type");
      type != nullptr && !has_type(value, *type)) {
    return "is no " + json::serialize(*type);
  }
  if (const json::value* fixed = object.if_contains("const"); fixed != nullptr && *fixed != value) {
    return "is not " + json::serialize(*fixed);
  }
  if (const json::value* list = object.if_contains("enum")) {
    bool found = false;
    for (const json::value& one : list->as_array()) {
      found = found || one == value;
    }
    if (!found) {
      return "is not one of " + json::serialize(*list);
    }
  }
  if (const json::value* choices = object.if_contains("anyOf")) {
    bool found = false;
    for (const json::value& one : choices->as_array()) {
      found = found || fault(root, one, value).empty();
    }
    if (!found) {
      return "fits no choice";
    }
  }
  if (value.is_object()) {
    return object_fault(root, object, value.get_object());
  }
  if (value.is_array()) {
    return array_fault(root, object, value.get_array());
  }
  return scalar_fault(object, value);
}

}  // namespace schema_test

/// Empty when `value` satisfies `schema`, else why not.
inline std::string schema_fault(const boost::json::value& schema, const boost::json::value& value) {
  return schema_test::fault(schema, schema, value);
}

}  // namespace baleen::text
