#include "rl/rl_metrics.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

namespace baleen::rl {
namespace {

constexpr int64_t kLongestPeriod = 128;
constexpr int64_t kRepeats = 4;

/// Whether the answer ends in the same run of tokens four times or more.
bool repeats_itself(const RolloutSample& sample) {
  const int64_t length = sample.response_tokens();
  const int32_t* ids = sample.ids.data() + sample.prompt_tokens;
  for (int64_t period = 1; period <= std::min(kLongestPeriod, length / kRepeats); ++period) {
    bool periodic = true;
    for (int64_t t = length - 1; periodic && t >= length - period * (kRepeats - 1); --t) {
      periodic = ids[t] == ids[t - period];
    }
    if (periodic) {
      return true;
    }
  }
  return false;
}

/// Highest memory use of the process so far, bytes; 0 where the system does not say.
double peak_memory() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "VmHWM:") {
      double kib = 0.0;
      status >> kib;
      return kib * 1024.0;
    }
  }
  return 0.0;
}

void add_lengths(const RolloutBatch& batch, policy::Metrics& out) {
  std::vector<int64_t> lengths;
  double total = 0.0;
  double with_prompt = 0.0;
  double truncated = 0.0;
  double repeating = 0.0;
  double version_sum = 0.0;
  double tokens = 0.0;
  double mixed = 0.0;
  double cached = 0.0;
  double prompts = 0.0;
  int64_t oldest = -1;
  int64_t newest = -1;
  for (const RolloutGroup& group : batch.groups) {
    for (const RolloutSample& sample : group.samples) {
      lengths.push_back(sample.response_tokens());
      total += static_cast<double>(sample.response_tokens());
      with_prompt += static_cast<double>(sample.ids.size());
      truncated += sample.status == SampleStatus::kTruncated ? 1.0 : 0.0;
      repeating += repeats_itself(sample) ? 1.0 : 0.0;
      mixed += sample.mixed_versions() ? 1.0 : 0.0;
      cached += static_cast<double>(sample.cached_tokens);
      prompts += static_cast<double>(sample.prompt_tokens);
      for (const VersionRun& run : sample.versions) {
        oldest = oldest < 0 ? run.version : std::min(oldest, run.version);
        newest = std::max(newest, run.version);
        version_sum += static_cast<double>(run.version * run.count);
        tokens += static_cast<double>(run.count);
      }
    }
  }
  const auto count = static_cast<double>(std::max<std::size_t>(lengths.size(), 1));
  std::sort(lengths.begin(), lengths.end());
  const auto length_at = [&](std::size_t place) {
    return lengths.empty() ? 0.0 : static_cast<double>(lengths[place]);
  };
  out.emplace_back("rollout/response_len/mean", total / count);
  out.emplace_back("rollout/response_len/median", length_at(lengths.size() / 2));
  out.emplace_back("rollout/response_len/min", length_at(0));
  out.emplace_back("rollout/response_len/max", length_at(lengths.empty() ? 0 : lengths.size() - 1));
  out.emplace_back("rollout/total_lengths", with_prompt / count);
  out.emplace_back("rollout/truncated_ratio", truncated / count);
  out.emplace_back("rollout/repetition_frac", repeating / count);
  out.emplace_back("rollout/weight_version/min", static_cast<double>(std::max<int64_t>(oldest, 0)));
  out.emplace_back("rollout/weight_version/max", static_cast<double>(std::max<int64_t>(newest, 0)));
  out.emplace_back("rollout/weight_version/mean", tokens > 0.0 ? version_sum / tokens : 0.0);
  out.emplace_back("rollout/mixed_version_ratio", mixed / count);
  out.emplace_back("rollout/prefix_cache_hit_rate", prompts > 0.0 ? cached / prompts : 0.0);
  out.emplace_back("rollout/avg_cached_tokens_per_sample", cached / count);
}

void add_filter(const RolloutBatch& batch, policy::Metrics& out) {
  const RolloutCounts& counts = batch.counts;
  const auto judged = static_cast<double>(std::max<int64_t>(counts.groups_judged, 1));
  const auto kept = static_cast<double>(batch.groups.size());
  out.emplace_back("rollout/kept_groups", kept);
  out.emplace_back("rollout/judged_groups", static_cast<double>(counts.groups_judged));
  out.emplace_back("rollout/submitted_groups", static_cast<double>(counts.groups_submitted));
  out.emplace_back("rollout/attempts_per_kept_group",
                   static_cast<double>(counts.groups_judged) / std::max(kept, 1.0));
  out.emplace_back("rollout/zero_std/count_0", static_cast<double>(counts.all_zero));
  out.emplace_back("rollout/zero_std/count_1", static_cast<double>(counts.all_one));
  out.emplace_back("rollout/zero_std/count_other", static_cast<double>(counts.all_other));
  out.emplace_back("rollout/zero_std/all_zero_percentage",
                   100.0 * static_cast<double>(counts.all_zero) / judged);
  out.emplace_back("rollout/zero_std/all_one_percentage",
                   100.0 * static_cast<double>(counts.all_one) / judged);
  out.emplace_back("rollout/dynamic_filter/drop_aborted",
                   static_cast<double>(counts.dropped_aborted));
  out.emplace_back("rollout/dynamic_filter/drop_failed",
                   static_cast<double>(counts.dropped_failed));
  out.emplace_back("rollout/dynamic_filter/drop_all_truncated",
                   static_cast<double>(counts.dropped_truncated));
  out.emplace_back("rollout/retries", static_cast<double>(counts.retries));
  out.emplace_back("reward/error_count", static_cast<double>(counts.reward_errors));
  out.emplace_back("reward/timeout_count", static_cast<double>(counts.reward_timeouts));
  // How hard the prompts are: shares of the judged ones by pass rate.
  constexpr int kBuckets = 4;
  std::vector<double> shares(kBuckets + 2, 0.0);  // 0, four quarters, 1
  for (const double rate : counts.pass_rates) {
    const std::size_t bucket =
        rate <= 0.0 ? 0
        : rate >= 1.0
            ? kBuckets + 1
            : 1 + std::min<std::size_t>(kBuckets - 1, static_cast<std::size_t>(rate * kBuckets));
    shares[bucket] += 1.0 / judged;
  }
  const char* names[] = {"none", "q1", "q2", "q3", "q4", "all"};
  for (std::size_t i = 0; i < shares.size(); ++i) {
    out.emplace_back(fmt::format("passrate/{}", names[i]), shares[i]);
  }
}

}  // namespace

policy::Metrics rollout_metrics(const RlConfig& config,
                                const RolloutBatch& batch,
                                const RolloutTimings& timings,
                                const UpdateReport& update,
                                int64_t version,
                                const RolloutSeconds& seconds) {
  policy::Metrics out = {{"train/step", static_cast<double>(batch.rollout_id)},
                         {"rollout/raw_reward", batch.counts.first_reward}};
  double kept_reward = 0.0;
  for (const RolloutGroup& group : batch.groups) {
    for (const RolloutSample& sample : group.samples) {
      kept_reward += sample.reward / static_cast<double>(batch.num_samples());
    }
  }
  out.emplace_back("rollout/kept_reward", kept_reward);
  out.insert(out.end(), update.metrics.begin(), update.metrics.end());
  add_filter(batch, out);
  add_lengths(batch, out);
  out.emplace_back("train/optimizer_steps", static_cast<double>(update.steps));
  out.emplace_back("train/trained_tokens", static_cast<double>(update.trained_tokens));
  out.emplace_back("train/num_steps_per_rollout",
                   static_cast<double>(config.num_steps_per_rollout));
  out.emplace_back("weight_version", static_cast<double>(version));
  out.emplace_back("rollout/aborted_tokens", static_cast<double>(timings.aborted_tokens));
  out.emplace_back("rollout/resumed_tokens", static_cast<double>(timings.resumed_tokens));
  out.emplace_back("rollout/dropped_pending_len_mean", timings.dropped_pending_len_mean);
  out.emplace_back("perf/rollout_time", seconds.generate);
  out.emplace_back("perf/train_time", update.train_seconds);
  out.emplace_back("perf/actor_train_time", update.train_seconds - update.score_seconds);
  out.emplace_back("perf/log_probs_time", update.score_seconds);
  out.emplace_back("perf/update_weights_time", seconds.publish);
  out.emplace_back("perf/step_time", seconds.step);
  out.emplace_back("perf/rollout_tokens_per_sec",
                   seconds.generate > 0.0
                       ? static_cast<double>(timings.generated_tokens) / seconds.generate
                       : 0.0);
  out.emplace_back("perf/peak_mem_bytes/train", peak_memory());
  return out;
}

policy::Metrics evaluation_metrics(const std::string& name, const EvaluationReport& report) {
  policy::Metrics out = {{"eval/" + name, report.greedy},
                         {"eval/" + name + "-stderr", report.greedy_error},
                         {"eval/" + name + "-truncated_ratio", report.truncated},
                         {"eval/" + name + "-response_len/mean", report.length}};
  if (report.sampled >= 0.0) {
    out.emplace_back("eval/" + name + "-pass@1", report.sampled);
  }
  return out;
}

}  // namespace baleen::rl
