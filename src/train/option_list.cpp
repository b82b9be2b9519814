#include "train/option_list.h"

#include <algorithm>
#include <numeric>

#include <boost/json.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "weights/json_fields.h"
#include "weights/json_text.h"

namespace baleen::train {
namespace {

namespace json = boost::json;

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int64_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

[[noreturn]] void wrong_value(const std::string& where, const char* name, const char* expected) {
  throw ConfigError(fmt::format("{}: {}: expected {}", where, name, expected));
}

void set_field(const json::value& value, const std::string& where, const char* name, bool& field) {
  if (!value.is_bool()) {
    wrong_value(where, name, "true or false");
  }
  field = value.as_bool();
}

void set_field(const json::value& value,
               const std::string& where,
               const char* name,
               int64_t& field) {
  json::error_code error;
  const auto number = value.to_number<int64_t>(error);
  if (error) {
    wrong_value(where, name, "a whole number");
  }
  field = number;
}

void set_field(const json::value& value,
               const std::string& where,
               const char* name,
               double& field) {
  if (!value.is_number()) {
    wrong_value(where, name, "a number");
  }
  field = value.to_number<double>();
}

void set_field(const json::value& value,
               const std::string& where,
               const char* name,
               std::string& field) {
  if (!value.is_string()) {
    wrong_value(where, name, "a string");
  }
  field = value.as_string();
}

void set_field(const json::value& value,
               const std::string& where,
               const char* name,
               std::vector<std::string>& field) {
  const json::array* list = value.if_array();
  if (list == nullptr) {
    wrong_value(where, name, "a list of strings");
  }
  field.clear();
  for (const json::value& entry : *list) {
    set_field(entry, where, name, field.emplace_back());
  }
}

json::value field_value(const std::vector<std::string>& field) {
  return json::array(field.begin(), field.end());
}
template <class Field>
json::value field_value(const Field& field) {
  return json::value(field);
}

}  // namespace

std::string nearest_option(const OptionList& options, std::string_view name) {
  std::string nearest;
  int64_t least = 0;
  for (const Option& option : options) {
    const int64_t distance = edit_distance(name, option.name);
    if (nearest.empty() || distance < least) {
      nearest = option.name;
      least = distance;
    }
  }
  return nearest;
}

void read_options(const OptionList& options, const std::string& text, const std::string& where) {
  const json::object object = weights::parse_json_object(text, where);
  std::set<std::string> known;
  for (const Option& option : options) {
    known.insert(option.name);
    if (const json::value* value = object.if_contains(option.name)) {
      std::visit([&](auto* field) { set_field(*value, where, option.name, *field); }, option.field);
    }
  }
  for (const auto& entry : object) {
    const std::string key(entry.key());
    if (!known.contains(key)) {
      throw ConfigError(fmt::format("{}: unknown key \"{}\"; the nearest is \"{}\"",
                                    where,
                                    key.substr(0, 100),
                                    nearest_option(options, key.substr(0, 100))));
    }
  }
}

std::string options_json(const OptionList& options) {
  json::object object;
  for (const Option& option : options) {
    object[option.name] =
        std::visit([](const auto* field) { return field_value(*field); }, option.field);
  }
  return weights::json_object_text(object);
}

RunSettings option_settings(const OptionList& options, const std::set<std::string>& left_out) {
  RunSettings settings;
  for (const Option& option : options) {
    if (!left_out.contains(option.name)) {
      settings[option.name] = json::serialize(
          std::visit([](const auto* field) { return field_value(*field); }, option.field));
    }
  }
  return settings;
}

void reject_option(const char* option, const std::string& text) {
  throw ConfigError(fmt::format("{}: {}", option, text));
}

void check_one_of(const char* option,
                  const std::string& value,
                  std::initializer_list<const char*> known) {
  for (const char* name : known) {
    if (value == name) {
      return;
    }
  }
  reject_option(option, fmt::format("\"{}\" is none of {}", value, fmt::join(known, ", ")));
}

void check_at_least(const char* option, double value, double low) {
  if (!(value >= low)) {
    reject_option(option, fmt::format("{} is too small, the least is {}", value, low));
  }
}

}  // namespace baleen::train
