#pragma once
// Rewards to per-token advantages. All statistics in double, added in ascending sample id, so that
// a shuffled batch gives the same bits. Groups and rollouts are found by id, never by place.
//
//   std::vector<TokenAdvantages> per_row = compute_advantages(rows, config);    // one process
//   row.advantages = per_row[i].advantages;
//
// Ranks that share a batch: unwhitened_advantages, add up WhiteningSums over ranks, whiten.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "policy/numbers.h"
#include "policy/token_losses.h"

namespace baleen::policy {

enum class Estimator {
  kGrpo,  // (R - mean) / (std + 1e-6); also for gspo, dapo and cispo
  kDrGrpo,
  kRloo,
  kReinforcePlusPlus,
  kReinforcePlusPlusBaseline,
  kPpo,
  kOpd,  // the distillation term alone
};
/// grpo, dr_grpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline, ppo, opd; gspo and cispo
/// are read as grpo (they differ in the ratio).
std::optional<Estimator> parse_estimator(std::string_view name);
const char* estimator_name(Estimator estimator);

struct AdvantageConfig {
  Estimator estimator = Estimator::kGrpo;
  bool grpo_std_normalization = true;
  int32_t grpo_std_ddof = 1;  // 1: divide by G - 1; 0: by G
  bool normalize_advantages = false;
  double gamma = 1.0;
  double lambd = 1.0;
  double kl_coef = 0.0;  // of the KL in the reward (reinforce_plus_plus*, ppo)
  KlType kl_type = KlType::kK1;
  bool use_opd = false;  // subtract opd_kl_coef * (l - l_teacher)
  double opd_kl_coef = 1.0;
  void validate() const;  // throws ConfigError; reinforce_plus_plus* must whiten
};

/// A row of the batch. Arrays are over the response, absent (empty) or as long as `mask`.
struct AdvantageRow {
  int64_t sample = 0;
  int32_t segment = 0;
  int64_t group = 0;
  int64_t rollout = 0;           // rows of one rollout share one reward and count once
  std::optional<double> reward;  // none: aborted by infrastructure; outside all statistics
  bool in_baseline = true;       // false: has an advantage but no part in mean and deviation
  std::span<const uint8_t> mask;
  Numbers logprobs;          // of the KL in the reward and of the distillation term: l_old
  Numbers ref_logprobs;      // needed where kl_coef != 0
  Numbers teacher_logprobs;  // needed by the distillation term
  Numbers values;            // needed by ppo: of the state before each token
};

struct TokenAdvantages {
  std::vector<double> advantages;  // 0 where masked; all 0 without a reward
  std::vector<double> returns;     // ppo: targets of the critic; reinforce_plus_plus: G_t; else A
  bool counted = true;             // false: the row has no reward and no part in whitening
};

/// Mean and deviation of a group's rewards, each rollout once.
struct GroupStatistics {
  int64_t count = 0;
  double mean = 0.0;
  double deviation = 0.0;  // exactly 0 where all rewards are equal
  bool all_equal = true;
};
/// In the order given. `ddof` 1 or 0; a single reward has deviation 0.
GroupStatistics group_statistics(std::span<const double> rewards, int32_t ddof);

/// The scalar advantage of each row (grpo, dr_grpo, rloo, and R - mean of
/// reinforce_plus_plus_baseline); none where the row has no reward. Throws Error when rows of one
/// rollout differ in reward or group.
std::vector<std::optional<double>> group_advantages(std::span<const AdvantageRow> rows,
                                                    const AdvantageConfig& config);

/// Sums for whitening over all unmasked tokens; add them up over ranks.
struct WhiteningSums {
  double count = 0.0;
  double sum = 0.0;
  double sum_of_squares = 0.0;
  void add(const WhiteningSums& other);
};

/// Everything but whitening. Throws Error naming the sample when a needed array is missing.
std::vector<TokenAdvantages> unwhitened_advantages(std::span<const AdvantageRow> rows,
                                                   const AdvantageConfig& config);
WhiteningSums whitening_sums(std::span<const AdvantageRow> rows,
                             std::span<const TokenAdvantages> advantages);
/// A <- (A - mean) / (sqrt(var) + 1e-8) where unmasked.
void whiten(std::span<const AdvantageRow> rows,
            const WhiteningSums& sums,
            std::span<TokenAdvantages> advantages);

/// unwhitened_advantages, then whiten if config.normalize_advantages.
std::vector<TokenAdvantages> compute_advantages(std::span<const AdvantageRow> rows,
                                                const AdvantageConfig& config);

/// Generalised advantage estimation over the unmasked tokens (masked ones are skipped, not
/// bridged): `rewards`, `values` as long as `mask`; 0 where masked.
TokenAdvantages generalized_advantages(std::span<const double> rewards,
                                       Numbers values,
                                       std::span<const uint8_t> mask,
                                       double gamma,
                                       double lambd);

/// G_t = r_t + gamma G_{t+1} over the unmasked tokens; 0 where masked.
std::vector<double> discounted_returns(std::span<const double> rewards,
                                       std::span<const uint8_t> mask,
                                       double gamma);

}  // namespace baleen::policy
