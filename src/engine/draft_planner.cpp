#include "engine/draft_planner.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace baleen::engine {
namespace {

constexpr double kFirstRate = 0.7;  // before anything was measured

void blend(double& rate, bool stood, double memory) {
  rate = memory * rate + (1.0 - memory) * (stood ? 1.0 : 0.0);
}

}  // namespace

void DraftPlannerConfig::validate() const {
  const auto within = [](const char* name, double value, double least, double most) {
    if (!(value >= least && value <= most)) {
      throw ConfigError(fmt::format("{} must be in {} .. {}, is {}", name, least, most, value));
    }
  };
  within("max_drafts", max_drafts, 0, 1024);
  within("cost_few", cost_few, 0.0, 1.0);
  within("cost_many", cost_many, cost_few, 1.0);
  within("rows_many", rows_many, 2, 1 << 20);
  within("probe_every", probe_every, 1, 1 << 20);
  within("memory", memory, 0.0, 1.0);
  within("memory_all", memory_all, 0.0, 1.0);
}

DraftPlanner::DraftPlanner(const DraftPlannerConfig& config)
    : config_((config.validate(), config)),
      rates_(static_cast<size_t>(config.max_drafts), kFirstRate) {}

DraftState DraftPlanner::begin(int32_t limit) const {
  DraftState state;
  state.limit = limit < 0 ? config_.max_drafts : std::min(limit, config_.max_drafts);
  state.rates = rates_;
  return state;
}

int32_t DraftPlanner::depth(const DraftState& state, int32_t num_rows) const {
  if (!config_.adaptive || state.limit == 0) {
    return state.limit;
  }
  const double crowd = std::clamp((num_rows - 1.0) / (config_.rows_many - 1.0), 0.0, 1.0);
  const double cost = config_.cost_few + crowd * (config_.cost_many - config_.cost_few);
  double chance = 1.0;
  int32_t depth = 0;
  while (depth < state.limit) {
    chance *= state.rates[static_cast<size_t>(depth)];
    if (chance < cost) {
      break;
    }
    ++depth;
  }
  if (depth == 0 && state.steps_without >= config_.probe_every) {
    return 1;
  }
  return depth;
}

void DraftPlanner::note(DraftState& state, int32_t num_drafted, int32_t num_accepted) {
  BALEEN_CHECK(num_accepted <= num_drafted && num_drafted <= config_.max_drafts,
               "{} of {} drafts, at most {}",
               num_accepted,
               num_drafted,
               config_.max_drafts);
  state.steps_without = num_drafted == 0 ? state.steps_without + 1 : 0;
  // Place n was tried if all before it stood.
  for (int32_t i = 0; i < std::min(num_accepted + 1, num_drafted); ++i) {
    blend(state.rates[static_cast<size_t>(i)], i < num_accepted, config_.memory);
    blend(rates_[static_cast<size_t>(i)], i < num_accepted, config_.memory_all);
  }
}

}  // namespace baleen::engine
