#include "policy/advantages.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::policy {
namespace {

constexpr double kDeviationFloor = 1e-6;
constexpr double kWhiteningFloor = 1e-8;

constexpr Estimator kEstimators[] = {Estimator::kGrpo,
                                     Estimator::kDrGrpo,
                                     Estimator::kRloo,
                                     Estimator::kReinforcePlusPlus,
                                     Estimator::kReinforcePlusPlusBaseline,
                                     Estimator::kPpo,
                                     Estimator::kOpd};

bool whitened_by_rule(Estimator estimator) {
  return estimator == Estimator::kReinforcePlusPlus ||
         estimator == Estimator::kReinforcePlusPlusBaseline;
}

std::vector<size_t> advantage_order(std::span<const AdvantageRow> rows) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(rows[a].sample, rows[a].segment) < std::pair(rows[b].sample, rows[b].segment);
  });
  return order;
}

/// What one group's statistics are made of: a rollout's reward once, by ascending sample.
struct GroupRewards {
  std::map<int64_t, double> of_rollout;
  std::vector<double> baseline;
};

void need(Numbers values, const AdvantageRow& row, const char* what) {
  if (values.size() != row.mask.size()) {
    throw Error(fmt::format("sample {}: the estimator needs {} of {} response tokens, got {}",
                            row.sample,
                            what,
                            row.mask.size(),
                            values.size()));
  }
}

/// -kl_coef * kl_t, and 0 where masked.
std::vector<double> kl_rewards(const AdvantageRow& row, const AdvantageConfig& config) {
  std::vector<double> rewards(row.mask.size(), 0.0);
  if (config.kl_coef == 0.0) {
    return rewards;
  }
  need(row.logprobs, row, "old log-probabilities");
  need(row.ref_logprobs, row, "reference log-probabilities");
  for (size_t t = 0; t < rewards.size(); ++t) {
    if (row.mask[t] != 0) {
      const double d = row.logprobs[t] - row.ref_logprobs[t];
      rewards[t] = -config.kl_coef * kl_estimate(config.kl_type, d).value;
    }
  }
  return rewards;
}

/// The reward stands at the last trained token.
void add_final_reward(const AdvantageRow& row, std::vector<double>& rewards) {
  for (size_t t = rewards.size(); t-- > 0;) {
    if (row.mask[t] != 0) {
      rewards[t] += *row.reward;
      return;
    }
  }
}

void subtract_teacher(const AdvantageRow& row,
                      const AdvantageConfig& config,
                      std::vector<double>& advantages) {
  need(row.logprobs, row, "log-probabilities");
  need(row.teacher_logprobs, row, "teacher log-probabilities");
  for (size_t t = 0; t < advantages.size(); ++t) {
    if (row.mask[t] != 0) {
      advantages[t] -= config.opd_kl_coef * (row.logprobs[t] - row.teacher_logprobs[t]);
    }
  }
}

TokenAdvantages row_advantages(const AdvantageRow& row,
                               std::optional<double> scalar,
                               const AdvantageConfig& config) {
  TokenAdvantages result;
  result.advantages.assign(row.mask.size(), 0.0);
  result.returns = result.advantages;
  const bool needs_reward = config.estimator != Estimator::kOpd;
  if (needs_reward && !row.reward) {
    result.counted = false;
    return result;
  }
  switch (config.estimator) {
    case Estimator::kPpo: {
      need(row.values, row, "values");
      std::vector<double> rewards = kl_rewards(row, config);
      add_final_reward(row, rewards);
      result = generalized_advantages(rewards, row.values, row.mask, config.gamma, config.lambd);
      break;
    }
    case Estimator::kReinforcePlusPlus: {
      std::vector<double> rewards = kl_rewards(row, config);
      add_final_reward(row, rewards);
      result.advantages = discounted_returns(rewards, row.mask, config.gamma);
      result.returns = result.advantages;
      break;
    }
    case Estimator::kReinforcePlusPlusBaseline:
      result.advantages = kl_rewards(row, config);
      [[fallthrough]];
    case Estimator::kGrpo:
    case Estimator::kDrGrpo:
    case Estimator::kRloo:
      for (size_t t = 0; t < row.mask.size(); ++t) {
        if (row.mask[t] != 0) {
          result.advantages[t] += *scalar;
        }
      }
      result.returns = result.advantages;
      break;
    case Estimator::kOpd:
      break;
  }
  if (config.use_opd || config.estimator == Estimator::kOpd) {
    subtract_teacher(row, config, result.advantages);
  }
  return result;
}

double scalar_advantage(double reward,
                        bool counted,
                        const GroupStatistics& group,
                        const AdvantageConfig& config) {
  if (group.count == 0 || (counted && (group.count == 1 || group.all_equal))) {
    return 0.0;
  }
  const double centred = reward - group.mean;
  const auto count = static_cast<double>(group.count);
  if (config.estimator == Estimator::kRloo && counted) {
    return centred * count / (count - 1.0);
  }
  if (config.estimator == Estimator::kGrpo && config.grpo_std_normalization &&
      group.deviation > 0.0) {
    return centred / (group.deviation + kDeviationFloor);
  }
  return centred;
}

}  // namespace

const char* estimator_name(Estimator estimator) {
  switch (estimator) {
    case Estimator::kGrpo:
      return "grpo";
    case Estimator::kDrGrpo:
      return "dr_grpo";
    case Estimator::kRloo:
      return "rloo";
    case Estimator::kReinforcePlusPlus:
      return "reinforce_plus_plus";
    case Estimator::kReinforcePlusPlusBaseline:
      return "reinforce_plus_plus_baseline";
    case Estimator::kPpo:
      return "ppo";
    case Estimator::kOpd:
      return "opd";
  }
  return "?";
}

std::optional<Estimator> parse_estimator(std::string_view name) {
  for (const Estimator estimator : kEstimators) {
    if (name == estimator_name(estimator)) {
      return estimator;
    }
  }
  if (name == "gspo" || name == "cispo") {
    return Estimator::kGrpo;
  }
  return std::nullopt;
}

void AdvantageConfig::validate() const {
  if (grpo_std_ddof != 0 && grpo_std_ddof != 1) {
    throw ConfigError(fmt::format("grpo_std_ddof must be 0 or 1, not {}", grpo_std_ddof));
  }
  if (whitened_by_rule(estimator) && !normalize_advantages) {
    throw ConfigError(fmt::format("advantage_estimator {} needs normalize_advantages",
                                  estimator_name(estimator)));
  }
  const auto in_unit = [](double value) { return value >= 0.0 && value <= 1.0; };
  if (!in_unit(gamma) || !in_unit(lambd)) {
    throw ConfigError(
        fmt::format("gamma and lambd must be in [0, 1], not {} and {}", gamma, lambd));
  }
}

GroupStatistics group_statistics(std::span<const double> rewards, int32_t ddof) {
  GroupStatistics group;
  group.count = static_cast<int64_t>(rewards.size());
  if (rewards.empty()) {
    return group;
  }
  const auto differs = [&](double reward) { return reward != rewards.front(); };
  group.all_equal = std::none_of(rewards.begin(), rewards.end(), differs);
  if (group.all_equal) {
    group.mean = rewards.front();
    return group;
  }
  const auto count = static_cast<double>(rewards.size());
  group.mean = std::accumulate(rewards.begin(), rewards.end(), 0.0) / count;
  double squares = 0.0;
  for (const double reward : rewards) {
    squares += (reward - group.mean) * (reward - group.mean);
  }
  group.deviation = std::sqrt(squares / (count - ddof));
  return group;
}

std::vector<std::optional<double>> group_advantages(std::span<const AdvantageRow> rows,
                                                    const AdvantageConfig& config) {
  std::map<int64_t, GroupRewards> groups;
  std::map<int64_t, int64_t> group_of_rollout;
  for (const size_t i : advantage_order(rows)) {
    const AdvantageRow& row = rows[i];
    const auto [home, first_of_rollout] = group_of_rollout.try_emplace(row.rollout, row.group);
    if (home->second != row.group) {
      throw Error(
          fmt::format("rollout {} is in groups {} and {}", row.rollout, home->second, row.group));
    }
    if (!row.reward) {
      continue;
    }
    if (!std::isfinite(*row.reward)) {
      throw Error(fmt::format("sample {}: reward {} is not finite", row.sample, *row.reward));
    }
    GroupRewards& group = groups[row.group];
    const auto [known, added] = group.of_rollout.try_emplace(row.rollout, *row.reward);
    if (!added && known->second != *row.reward) {
      throw Error(fmt::format(
          "rollout {}: its rows have rewards {} and {}", row.rollout, known->second, *row.reward));
    }
    if (added && row.in_baseline) {
      group.baseline.push_back(*row.reward);
    }
  }
  std::map<int64_t, GroupStatistics> statistics;
  for (const auto& [id, group] : groups) {
    statistics[id] = group_statistics(group.baseline, config.grpo_std_ddof);
  }
  std::vector<std::optional<double>> advantages(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].reward) {
      advantages[i] = scalar_advantage(
          *rows[i].reward, rows[i].in_baseline, statistics.at(rows[i].group), config);
    }
  }
  return advantages;
}

void WhiteningSums::add(const WhiteningSums& other) {
  count += other.count;
  sum += other.sum;
  sum_of_squares += other.sum_of_squares;
}

std::vector<TokenAdvantages> unwhitened_advantages(std::span<const AdvantageRow> rows,
                                                   const AdvantageConfig& config) {
  const std::vector<std::optional<double>> scalars = group_advantages(rows, config);
  std::vector<TokenAdvantages> result;
  result.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    result.push_back(row_advantages(rows[i], scalars[i], config));
  }
  return result;
}

WhiteningSums whitening_sums(std::span<const AdvantageRow> rows,
                             std::span<const TokenAdvantages> advantages) {
  WhiteningSums sums;
  for (const size_t i : advantage_order(rows)) {
    for (size_t t = 0; t < rows[i].mask.size(); ++t) {
      if (rows[i].mask[t] != 0 && advantages[i].counted) {
        const double a = advantages[i].advantages[t];
        sums.add({1.0, a, a * a});
      }
    }
  }
  return sums;
}

void whiten(std::span<const AdvantageRow> rows,
            const WhiteningSums& sums,
            std::span<TokenAdvantages> advantages) {
  if (sums.count == 0.0) {
    return;
  }
  const double mean = sums.sum / sums.count;
  const double variance = std::max(sums.sum_of_squares / sums.count - mean * mean, 0.0);
  const double scale = 1.0 / (std::sqrt(variance) + kWhiteningFloor);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t t = 0; t < rows[i].mask.size(); ++t) {
      if (rows[i].mask[t] != 0 && advantages[i].counted) {
        double& advantage = advantages[i].advantages[t];
        advantage = (advantage - mean) * scale;
      }
    }
  }
}

std::vector<TokenAdvantages> compute_advantages(std::span<const AdvantageRow> rows,
                                                const AdvantageConfig& config) {
  std::vector<TokenAdvantages> result = unwhitened_advantages(rows, config);
  if (config.normalize_advantages) {
    whiten(rows, whitening_sums(rows, result), result);
  }
  return result;
}

TokenAdvantages generalized_advantages(std::span<const double> rewards,
                                       Numbers values,
                                       std::span<const uint8_t> mask,
                                       double gamma,
                                       double lambd) {
  TokenAdvantages result;
  result.advantages.assign(mask.size(), 0.0);
  result.returns.assign(mask.size(), 0.0);
  double next_value = 0.0;
  double next_advantage = 0.0;
  for (size_t t = mask.size(); t-- > 0;) {
    if (mask[t] == 0) {
      continue;
    }
    const double delta = rewards[t] + gamma * next_value - values[t];
    next_advantage = delta + gamma * lambd * next_advantage;
    next_value = values[t];
    result.advantages[t] = next_advantage;
    result.returns[t] = next_advantage + values[t];
  }
  return result;
}

std::vector<double> discounted_returns(std::span<const double> rewards,
                                       std::span<const uint8_t> mask,
                                       double gamma) {
  std::vector<double> returns(mask.size(), 0.0);
  double next = 0.0;
  for (size_t t = mask.size(); t-- > 0;) {
    if (mask[t] != 0) {
      next = rewards[t] + gamma * next;
      returns[t] = next;
    }
  }
  return returns;
}

}  // namespace baleen::policy
