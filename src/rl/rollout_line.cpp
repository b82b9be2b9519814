#include "rl/rollout_line.h"

#include <algorithm>

#include <fmt/format.h>

namespace baleen::rl {

RolloutLine rollout_line(const RlConfig& config,
                         const RolloutBatch& batch,
                         const UpdateReport& update,
                         const RolloutSeconds& seconds) {
  RolloutLine line;
  line.rollout = batch.rollout_id;
  line.num_rollouts = config.num_rollout;
  line.reward = batch.counts.first_reward;
  line.kept = static_cast<int64_t>(batch.groups.size());
  line.judged = batch.counts.groups_judged;
  double tokens = 0.0;
  for (const RolloutGroup& group : batch.groups) {
    for (const RolloutSample& sample : group.samples) {
      tokens += static_cast<double>(sample.response_tokens());
    }
  }
  line.length = tokens / static_cast<double>(std::max<int64_t>(batch.num_samples(), 1));
  line.entropy = update.entropy;
  line.gradient_norm = update.gradient_norm;
  line.drift = update.drift.all.mean_abs;
  line.agreement = update.drift.all.exact_frac;
  line.generate_seconds = seconds.generate;
  line.train_seconds = update.train_seconds;
  line.version = batch.rollout_id + 1;
  return line;
}

std::string rollout_text(const RolloutLine& line) {
  return fmt::format(
      "r {} | reward {:.2f} | kept {}/{} | len {:.1f} | H {:.2f} | |g| {:.2f} | drift {:.2g} | "
      "agree {:.4g}% | gen {:.1f}s train {:.1f}s | v{}",
      line.rollout,
      line.reward,
      line.kept,
      line.judged,
      line.length,
      line.entropy,
      line.gradient_norm,
      line.drift,
      100.0 * line.agreement,
      line.generate_seconds,
      line.train_seconds,
      line.version);
}

}  // namespace baleen::rl
