#pragma once
// Settings with a least value. Pure.
//
//   check_at_least("max_running", max_running, 1);

#include <type_traits>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen {

/// Throws ConfigError naming the setting where `value` is below `least`, or is NaN.
template <class Value>
void check_at_least(const char* name, Value value, std::type_identity_t<Value> least) {
  if (!(value >= least)) {
    throw ConfigError(fmt::format("{} must be at least {}, is {}", name, least, value));
  }
}

}  // namespace baleen
