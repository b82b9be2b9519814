#pragma once
// Log lines of one form: `room event key=value`. Levels: error (someone must act), warn, info (life
// cycle), debug. Never once per token, never prompt text. Thread-safe; written by a background
// thread.
//
//   log::info("engine", "started slots={} context={}", slots, context);

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace baleen::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };

/// Sets the lowest level written (default kInfo). Errors: none.
void set_level(Level level);
/// Parses debug | info | warn | error | off; false when the name is none of them.
bool parse_level(std::string_view name, Level& level);
bool enabled(Level level);
void write(Level level, std::string_view room, const std::string& message);
/// Writes out what is queued; called before the program ends.
void flush();

template <class... Args>
void debug(std::string_view room, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug)) {
    write(Level::kDebug, room, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <class... Args>
void info(std::string_view room, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) {
    write(Level::kInfo, room, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <class... Args>
void warn(std::string_view room, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarn)) {
    write(Level::kWarn, room, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <class... Args>
void error(std::string_view room, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kError)) {
    write(Level::kError, room, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace baleen::log
