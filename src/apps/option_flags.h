#pragma once
// A command whose options are a typed list (train/option_list.h): a flag for each, a file with the
// same names, and how the two join. Owned by the command's callback.
//
//   OptionFlags flags(command, train::options_of(held));     // held: any config of the type
//   flags.apply(train::options_of(config));                  // what stands on the command line

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "train/option_list.h"

namespace baleen::apps {

class OptionFlags {
 public:
  /// Adds --a-b for every option a_b, and --config. `held` keeps what the command line says and
  /// shows the defaults.
  OptionFlags(CLI::App& command, train::OptionList held, const std::string& config_help);

  /// Sets the options that stand on the command line.
  void apply(const train::OptionList& to) const;
  /// Those of the file, if one was given: JSON, or TOML by its name.
  void apply_file(const train::OptionList& to) const;

 private:
  train::OptionList held_;
  std::vector<CLI::Option*> flags_;  // in the order of the list
  std::string file_;
};

}  // namespace baleen::apps
