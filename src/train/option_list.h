#pragma once
// Options of a command as one typed list: for the command line, for a JSON file, and for the record
// of a run. A config has a function for_each_option(config, visit) that calls visit(name, field,
// help) for every option in the order of the help. Pure; any thread.
//
//   OptionList options = options_of(config);
//   read_options(options, json_text, "run.json");     // unknown keys are refused
//   std::string record = options_json(options);

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "train/run_settings.h"

namespace baleen::train {

struct Option {
  using Field = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*>;
  const char* name;  // a_b; as a flag --a-b
  Field field;       // of the config that the list was made of, which outlives it
  const char* help;
};
using OptionList = std::vector<Option>;

template <class Config>
OptionList options_of(Config& config) {
  OptionList options;
  for_each_option(config, [&](const char* name, auto& field, const char* help) {
    options.push_back({name, &field, help});
  });
  return options;
}

/// Sets the fields that the JSON object names. Throws ConfigError naming `where` and the key: an
/// unknown key with the nearest known one, a value of the wrong type.
void read_options(const OptionList& options, const std::string& json, const std::string& where);

/// One option a line.
std::string options_json(const OptionList& options);

/// Values as JSON text by name, without the names in `left_out`.
RunSettings option_settings(const OptionList& options, const std::set<std::string>& left_out);

/// The known name that is the fewest edits away.
std::string nearest_option(const OptionList& options, std::string_view name);

/// Throw ConfigError "option: text".
[[noreturn]] void reject_option(const char* option, const std::string& text);
void check_one_of(const char* option,
                  const std::string& value,
                  std::initializer_list<const char*> known);
void check_at_least(const char* option, double value, double low);

}  // namespace baleen::train
