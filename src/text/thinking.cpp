#include "text/thinking.h"

#include <array>
#include <utility>

#include <fmt/format.h>

namespace baleen::text {
namespace {

constexpr int32_t kLowNumber = 50;
constexpr int32_t kHighNumber = 75;
constexpr int32_t kMaxNumber = 100;

/// The named levels and their aliases; "none" is not a level.
constexpr std::array<std::pair<std::string_view, EffortLevel>, 7> kLevels = {{
    {"minimal", EffortLevel::kLow},
    {"low", EffortLevel::kLow},
    {"medium", EffortLevel::kHigh},
    {"high", EffortLevel::kHigh},
    {"xhigh", EffortLevel::kHigh},
    {"max", EffortLevel::kMax},
    {"ultra", EffortLevel::kMax},
}};

struct ReadEffort {
  bool given = false;
  bool off = false;
  Effort effort;
};

Result<ReadEffort> read_effort(ChatProfile profile, const EffortField& field) {
  ReadEffort read;
  if (std::holds_alternative<std::monostate>(field.value)) {
    return read;
  }
  read.given = true;
  if (const auto* name = std::get_if<std::string>(&field.value)) {
    if (*name == "none") {
      read.off = true;
      return read;
    }
    for (const auto& [known, level] : kLevels) {
      if (*name == known) {
        read.effort.level = level;
        return read;
      }
    }
  } else if (const auto* number = std::get_if<int64_t>(&field.value)) {
    if (profile == ChatProfile::kV41 && *number >= 1 && *number <= kMaxNumber) {
      read.effort = {EffortLevel::kNumber, static_cast<int32_t>(*number)};
      return read;
    }
  }
  const std::string_view numbers =
      profile == ChatProfile::kV41 ? " or a whole number from 1 to 100" : "";
  return Status::invalid(
      fmt::format("{} must be one of none, minimal, low, medium, high, xhigh, ultra, max{}",
                  field.param,
                  numbers),
      field.param);
}

}  // namespace

Result<ThinkingDecision> decide_thinking(ChatProfile profile,
                                         const ThinkingFields& fields,
                                         bool default_thinking) {
  bool off = fields.kwargs_thinking == false || fields.kwargs_enable_thinking == false;
  bool on = fields.kwargs_thinking == true || fields.kwargs_enable_thinking == true;
  if (fields.thinking_type) {
    const std::string& type = *fields.thinking_type;
    if (type != "disabled" && type != "enabled" && type != "adaptive") {
      return Status::invalid("thinking.type must be one of disabled, enabled, adaptive",
                             "thinking.type");
    }
    (type == "disabled" ? off : on) = true;
  }
  std::optional<Effort> effort;
  for (const EffortField& field : fields.efforts) {
    const auto read = read_effort(profile, field);
    if (!read.ok()) {
      return read.status();
    }
    off = off || read->off;
    on = on || (read->given && !read->off);
    if (read->given && !read->off && !effort) {
      effort = read->effort;
    }
  }
  ThinkingDecision decision;
  decision.thinking = !off && (on || default_thinking);
  if (decision.thinking && effort) {
    decision.effort = *effort;
  }
  return decision;
}

int32_t effort_number(const Effort& effort) {
  switch (effort.level) {
    case EffortLevel::kLow:
      return kLowNumber;
    case EffortLevel::kMax:
      return kMaxNumber;
    case EffortLevel::kNumber:
      return effort.number;
    default:
      return kHighNumber;
  }
}

std::string_view default_effort_name(ChatProfile profile) {
  return profile == ChatProfile::kV4_0731 ? "low" : "high";
}

}  // namespace baleen::text
