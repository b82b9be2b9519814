#include "rewards/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>

namespace baleen::rewards {
namespace {

using text::JsonMember;
using text::JsonValue;
using JsonKind = text::JsonValue::Kind;

constexpr int kMaxSchemaDepth = 64;

bool one_of_words(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_number(const JsonValue& value) {
  return value.kind == JsonKind::kInteger || value.kind == JsonKind::kFloat;
}
double number_of(const JsonValue& value) {
  return std::strtod(value.text.c_str(), nullptr);
}
bool is_integer(const JsonValue& value) {
  return value.kind == JsonKind::kInteger ||
         (value.kind == JsonKind::kFloat && std::floor(number_of(value)) == number_of(value));
}

bool has_type(const JsonValue& value, std::string_view type) {
  switch (value.kind) {
    case JsonKind::kNull:
      return type == "null";
    case JsonKind::kBool:
      return type == "boolean";
    case JsonKind::kInteger:
    case JsonKind::kFloat:
      return type == "number" || (type == "integer" && is_integer(value));
    case JsonKind::kString:
      return type == "string";
    case JsonKind::kArray:
      return type == "array";
    case JsonKind::kObject:
      return type == "object";
  }
  return false;
}

bool same_json(const JsonValue& a, const JsonValue& b, StepBudget& budget) {
  if (!budget.spend()) {
    return false;
  }
  if (is_number(a) && is_number(b)) {
    return a.text == b.text || number_of(a) == number_of(b);
  }
  if (a.kind != b.kind || a.text != b.text || a.items.size() != b.items.size() ||
      a.members.size() != b.members.size()) {
    return false;
  }
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!same_json(a.items[i], b.items[i], budget)) {
      return false;
    }
  }
  return std::all_of(a.members.begin(), a.members.end(), [&](const JsonMember& member) {
    const JsonValue* other = b.find(member.key);
    return other != nullptr && same_json(member.value, *other, budget);
  });
}

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  });
}

/// The part of `root` that "#", "#/a/b" points to, or null.
const JsonValue* pointed_to(const JsonValue& root, std::string_view reference) {
  if (!reference.starts_with('#')) {
    return nullptr;
  }
  const JsonValue* place = &root;
  std::string_view rest = reference.substr(1);
  while (place != nullptr && !rest.empty()) {
    if (rest.front() != '/') {
      return nullptr;
    }
    const size_t end = std::min(rest.find('/', 1), rest.size());
    place = place->find(rest.substr(1, end - 1));
    rest.remove_prefix(end);
  }
  return place;
}

/// Reads a schema once and refuses what it does not know.
class SchemaReader {
 public:
  SchemaReader(const JsonValue& root, std::map<std::string, LinearRegex>& patterns)
      : root_(root), patterns_(patterns) {}

  Status read(const JsonValue& schema, const std::string& place, int depth) {
    if (schema.kind == JsonKind::kBool) {
      return {};
    }
    if (!schema.is_object() || depth > kMaxSchemaDepth) {
      return wrong(place, "a schema is an object, true or false, at most 64 levels deep");
    }
    for (const JsonMember& member : schema.members) {
      Status status = keyword(member.key, member.value, place + "/" + member.key, depth);
      if (!status.ok()) {
        return status;
      }
    }
    return {};
  }

 private:
  static Status wrong(const std::string& place, const std::string& what) {
    return Status::invalid(fmt::format("JSON schema, {}: {}", place.empty() ? "/" : place, what));
  }

  Status keyword(std::string_view key,
                 const JsonValue& value,
                 const std::string& place,
                 int depth) {
    if (one_of_words(key,
                     {"title",
                      "description",
                      "default",
                      "examples",
                      "$schema",
                      "$id",
                      "$comment",
                      "format",
                      "deprecated",
                      "readOnly",
                      "writeOnly",
                      "const"})) {
      return {};
    }
    if (one_of_words(key, {"properties", "$defs", "definitions"})) {
      return each_member(value, place, depth);
    }
    if (one_of_words(key, {"allOf", "anyOf", "oneOf", "prefixItems"})) {
      return each_item(value, place, depth);
    }
    if (one_of_words(key, {"items", "additionalProperties", "not"})) {
      return read(value, place, depth + 1);
    }
    if (key == "type") {
      return type(value, place);
    }
    if (key == "enum") {
      return value.kind == JsonKind::kArray ? Status() : wrong(place, "must be an array");
    }
    if (key == "required") {
      const bool names = value.kind == JsonKind::kArray &&
                         std::all_of(value.items.begin(), value.items.end(), [](const auto& item) {
                           return item.is_string();
                         });
      return names ? Status() : wrong(place, "must be an array of names");
    }
    if (one_of_words(
            key,
            {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})) {
      return is_integer(value) && number_of(value) >= 0.0
                 ? Status()
                 : wrong(place, "must be an integer of at least 0");
    }
    if (one_of_words(key, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})) {
      return is_number(value) ? Status() : wrong(place, "must be a number");
    }
    if (key == "multipleOf") {
      return is_number(value) && number_of(value) > 0.0 ? Status()
                                                        : wrong(place, "must be a number above 0");
    }
    if (key == "uniqueItems") {
      return value.kind == JsonKind::kBool ? Status() : wrong(place, "must be true or false");
    }
    if (key == "$ref") {
      return value.is_string() && pointed_to(root_, value.text) != nullptr
                 ? Status()
                 : wrong(place, "must point into the schema, as \"#/$defs/name\"");
    }
    return key == "pattern" ? pattern(value, place) : wrong(place, "is not supported");
  }

  Status each_member(const JsonValue& value, const std::string& place, int depth) {
    if (!value.is_object()) {
      return wrong(place, "must be an object");
    }
    for (const JsonMember& member : value.members) {
      if (Status status = read(member.value, place + "/" + member.key, depth + 1); !status.ok()) {
        return status;
      }
    }
    return {};
  }
  Status each_item(const JsonValue& value, const std::string& place, int depth) {
    if (value.kind != JsonKind::kArray || value.items.empty()) {
      return wrong(place, "must be an array of schemas");
    }
    for (size_t i = 0; i < value.items.size(); ++i) {
      const std::string item = fmt::format("{}/{}", place, i);
      if (Status status = read(value.items[i], item, depth + 1); !status.ok()) {
        return status;
      }
    }
    return {};
  }

  Status type(const JsonValue& value, const std::string& place) {
    const auto known = [](const JsonValue& name) {
      return name.is_string() &&
             one_of_words(name.text,
                          {"null", "boolean", "integer", "number", "string", "array", "object"});
    };
    const bool fine = value.kind == JsonKind::kArray
                          ? std::all_of(value.items.begin(), value.items.end(), known)
                          : known(value);
    return fine ? Status() : wrong(place, "names no JSON type");
  }

  Status pattern(const JsonValue& value, const std::string& place) {
    if (!value.is_string()) {
      return wrong(place, "must be a string");
    }
    Result<LinearRegex> regex = LinearRegex::compile(value.text);
    if (!regex.ok()) {
      return wrong(place, regex.status().message);
    }
    patterns_.emplace(value.text, std::move(regex).value());
    return {};
  }

  const JsonValue& root_;
  std::map<std::string, LinearRegex>& patterns_;
};

}  // namespace

/// Checks one value; keeps the first reason.
class SchemaCheck {
 public:
  SchemaCheck(const JsonSchema& schema, StepBudget& budget) : schema_(schema), budget_(budget) {}

  bool check(const JsonValue& value, const JsonValue& schema, const std::string& place, int depth) {
    if (!budget_.spend() || depth > kMaxSchemaDepth) {
      return no(place, "too much work");
    }
    if (schema.kind == JsonKind::kBool) {
      return schema.text == "true" || no(place, "nothing is allowed here");
    }
    return std::all_of(schema.members.begin(), schema.members.end(), [&](const JsonMember& rule) {
      return holds(value, rule.key, rule.value, schema, place, depth);
    });
  }
  const std::string& reason() const { return reason_; }

 private:
  bool no(const std::string& place, const std::string& what) {
    if (reason_.empty() && !silent_) {
      reason_ = fmt::format("{}: {}", place.empty() ? "/" : place, what);
    }
    return false;
  }
  /// Checks without leaving a reason.
  bool quietly(const JsonValue& value,
               const JsonValue& schema,
               const std::string& place,
               int depth) {
    const bool was = silent_;
    silent_ = true;
    const bool result = check(value, schema, place, depth + 1);
    silent_ = was;
    return result;
  }

  bool holds(const JsonValue& value,
             std::string_view key,
             const JsonValue& rule,
             const JsonValue& schema,
             const std::string& place,
             int depth) {
    if (key == "type") {
      const auto matches = [&](const JsonValue& name) { return has_type(value, name.text); };
      const bool right = rule.is_string()
                             ? matches(rule)
                             : std::any_of(rule.items.begin(), rule.items.end(), matches);
      return right || no(place, "is of another type");
    }
    if (key == "const") {
      return same_json(value, rule, budget_) || no(place, "is not the constant");
    }
    if (key == "enum") {
      const auto same = [&](const JsonValue& item) { return same_json(value, item, budget_); };
      return std::any_of(rule.items.begin(), rule.items.end(), same) ||
             no(place, "is none of the listed values");
    }
    if (key == "$ref") {
      return check(value, *pointed_to(schema_.root_, rule.text), place, depth + 1);
    }
    if (one_of_words(key, {"allOf", "anyOf", "oneOf", "not"})) {
      return combined(value, key, rule, place, depth);
    }
    switch (value.kind) {
      case JsonKind::kObject:
        return object_rule(value, key, rule, schema, place, depth);
      case JsonKind::kArray:
        return array_rule(value, key, rule, schema, place, depth);
      case JsonKind::kString:
        return string_rule(value, key, rule, place);
      case JsonKind::kInteger:
      case JsonKind::kFloat:
        return number_rule(number_of(value), key, rule, place);
      default:
        return true;
    }
  }

  bool combined(const JsonValue& value,
                std::string_view key,
                const JsonValue& rule,
                const std::string& place,
                int depth) {
    if (key == "allOf") {
      return std::all_of(rule.items.begin(), rule.items.end(), [&](const JsonValue& part) {
        return check(value, part, place, depth + 1);
      });
    }
    if (key == "not") {
      return !quietly(value, rule, place, depth) || no(place, "is what it must not be");
    }
    const auto fits =
        std::count_if(rule.items.begin(), rule.items.end(), [&](const JsonValue& part) {
          return quietly(value, part, place, depth);
        });
    return (key == "anyOf" ? fits >= 1 : fits == 1) ||
           no(place, fmt::format("fits {} of the {} schemas", fits, key));
  }

  bool object_rule(const JsonValue& value,
                   std::string_view key,
                   const JsonValue& rule,
                   const JsonValue& schema,
                   const std::string& place,
                   int depth) {
    const auto count = static_cast<double>(value.members.size());
    if (key == "required") {
      return std::all_of(rule.items.begin(), rule.items.end(), [&](const JsonValue& name) {
        return value.find(name.text) != nullptr || no(place, "lacks \"" + name.text + "\"");
      });
    }
    if (key == "minProperties" || key == "maxProperties") {
      return (key == "minProperties" ? count >= number_of(rule) : count <= number_of(rule)) ||
             no(place, "has a wrong number of members");
    }
    if (key != "properties" && key != "additionalProperties") {
      return true;
    }
    const JsonValue* named = schema.find("properties");
    return std::all_of(value.members.begin(), value.members.end(), [&](const JsonMember& member) {
      const JsonValue* own = named == nullptr ? nullptr : named->find(member.key);
      const JsonValue* applies = key == "properties" ? own : own == nullptr ? &rule : nullptr;
      return applies == nullptr ||
             check(member.value, *applies, place + "/" + member.key, depth + 1);
    });
  }

  bool array_rule(const JsonValue& value,
                  std::string_view key,
                  const JsonValue& rule,
                  const JsonValue& schema,
                  const std::string& place,
                  int depth) {
    const auto count = static_cast<double>(value.items.size());
    if (key == "minItems" || key == "maxItems") {
      return (key == "minItems" ? count >= number_of(rule) : count <= number_of(rule)) ||
             no(place, "has a wrong number of items");
    }
    if (key == "uniqueItems") {
      return rule.text != "true" || all_differ(value.items) || no(place, "has equal items");
    }
    const JsonValue* prefix = schema.find("prefixItems");
    const size_t fixed = prefix == nullptr ? 0 : prefix->items.size();
    const bool is_prefix = key == "prefixItems";
    if (!is_prefix && key != "items") {
      return true;
    }
    const size_t begin = is_prefix ? 0 : fixed;
    const size_t end = is_prefix ? std::min(fixed, value.items.size()) : value.items.size();
    for (size_t i = begin; i < end; ++i) {
      const JsonValue& applies = is_prefix ? rule.items[i] : rule;
      if (!check(value.items[i], applies, fmt::format("{}/{}", place, i), depth + 1)) {
        return false;
      }
    }
    return true;
  }

  bool all_differ(const std::vector<JsonValue>& items) {
    for (size_t i = 0; i < items.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        if (!budget_.spend() || same_json(items[i], items[k], budget_)) {
          return false;
        }
      }
    }
    return true;
  }

  bool string_rule(const JsonValue& value,
                   std::string_view key,
                   const JsonValue& rule,
                   const std::string& place) {
    if (key == "minLength" || key == "maxLength") {
      const auto count = static_cast<double>(characters(value.text));
      return (key == "minLength" ? count >= number_of(rule) : count <= number_of(rule)) ||
             no(place, "has a wrong length");
    }
    if (key == "pattern") {
      return schema_.patterns_.at(rule.text).search(value.text, budget_).value_or(false) ||
             no(place, "does not match the pattern");
    }
    return true;
  }

  bool number_rule(double value,
                   std::string_view key,
                   const JsonValue& rule,
                   const std::string& place) {
    const double bound = is_number(rule) ? number_of(rule) : 0.0;
    bool right = true;
    if (key == "minimum") {
      right = value >= bound;
    } else if (key == "maximum") {
      right = value <= bound;
    } else if (key == "exclusiveMinimum") {
      right = value > bound;
    } else if (key == "exclusiveMaximum") {
      right = value < bound;
    } else if (key == "multipleOf") {
      const double quotient = value / bound;
      right = std::abs(quotient - std::round(quotient)) <= 1e-9 * std::max(1.0, std::abs(quotient));
    }
    return right || no(place, fmt::format("breaks {}", key));
  }

  const JsonSchema& schema_;
  StepBudget& budget_;
  bool silent_ = false;
  std::string reason_;
};

Result<JsonSchema> JsonSchema::compile(std::string_view schema) {
  std::string error;
  std::optional<JsonValue> root = text::parse_json(schema, &error);
  if (!root) {
    return Status::invalid("JSON schema: " + error);
  }
  JsonSchema compiled;
  compiled.root_ = std::move(*root);
  SchemaReader reader(compiled.root_, compiled.patterns_);
  if (Status status = reader.read(compiled.root_, "", 0); !status.ok()) {
    return status;
  }
  return compiled;
}

JsonSchema::Verdict JsonSchema::validate(std::string_view text, StepBudget& budget) const {
  Verdict verdict;
  if (!budget.spend(static_cast<int64_t>(text.size()))) {
    verdict.reason = "too much work";
    return verdict;
  }
  const std::optional<JsonValue> value = text::parse_json(text, &verdict.reason);
  if (!value) {
    return verdict;
  }
  SchemaCheck check(*this, budget);
  verdict.valid = check.check(*value, root_, "", 0) && !budget.spent();
  verdict.reason = budget.spent() ? "too much work" : check.reason();
  return verdict;
}

}  // namespace baleen::rewards
