#include "base/log.h"

#include <atomic>
#include <memory>

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace baleen::log {
namespace {

constexpr std::size_t kQueueLines = 8192;
std::atomic<Level> g_level{Level::kInfo};

// Owns the queue, its writer thread and the logger, in that order of construction.
struct Backend {
  std::shared_ptr<spdlog::details::thread_pool> pool =
      std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
  std::shared_ptr<spdlog::async_logger> logger = std::make_shared<spdlog::async_logger>(
      "baleen",
      std::make_shared<spdlog::sinks::stderr_color_sink_mt>(),
      pool,
      spdlog::async_overflow_policy::overrun_oldest);
  Backend() {
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    logger->set_level(spdlog::level::trace);
    logger->flush_on(spdlog::level::info);
  }
};

Backend& backend() {
  static Backend instance;
  return instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

}  // namespace

void set_level(Level level) {
  g_level.store(level, std::memory_order_relaxed);
}

bool parse_level(std::string_view name, Level& level) {
  constexpr std::pair<std::string_view, Level> kNames[] = {{"debug", Level::kDebug},
                                                           {"info", Level::kInfo},
                                                           {"warn", Level::kWarn},
                                                           {"error", Level::kError},
                                                           {"off", Level::kOff}};
  for (const auto& [known, value] : kNames) {
    if (known == name) {
      level = value;
      return true;
    }
  }
  return false;
}

bool enabled(Level level) {
  return level >= g_level.load(std::memory_order_relaxed);
}

void write(Level level, std::string_view room, const std::string& message) {
  backend().logger->log(to_spdlog(level), "{} {}", room, message);
}

void flush() {
  backend().logger->flush();
}

}  // namespace baleen::log
