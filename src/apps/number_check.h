#pragma once
// The range check of flags with a fraction. CLI::Range compares with < and >, which lets "nan"
// through. Pure.
//
//   command.add_option("--memory-gib", ...)->check(number_in(0.0, 1e9));

#include <CLI/CLI.hpp>

namespace baleen::apps {

/// `min` and `max` belong to the range.
CLI::Validator number_in(double min, double max);

}  // namespace baleen::apps
