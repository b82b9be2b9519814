#include "policy/rollout_metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace baleen::policy {
namespace {

/// A mean over whatever was added; nothing is written where nothing was.
struct RunningMean {
  double sum = 0.0;
  double count = 0.0;
  void add(double value) {
    sum += value;
    count += 1.0;
  }
  void add_masked(const Numbers& values, std::span<const uint8_t> mask) {
    if (values.empty()) {
      return;
    }
    BALEEN_CHECK(values.size() == mask.size(), "{} values, mask {}", values.size(), mask.size());
    for (size_t t = 0; t < mask.size(); ++t) {
      if (mask[t] != 0) {
        add(values[t]);
      }
    }
  }
  void write(Metrics& metrics, const char* name) const {
    if (count > 0.0) {
      metrics.emplace_back(std::string("rollout/") + name, sum / count);
    }
  }
};

double middle_of(std::vector<double> sorted) {
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : 0.5 * (sorted[half - 1] + sorted[half]);
}

void write_lengths(const std::string& prefix,
                   const std::vector<double>& lengths,
                   Metrics& metrics) {
  const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
  const double sum = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  metrics.emplace_back(prefix + "response_len/mean", sum / static_cast<double>(lengths.size()));
  metrics.emplace_back(prefix + "response_len/median", middle_of(lengths));
  metrics.emplace_back(prefix + "response_len/min", *shortest);
  metrics.emplace_back(prefix + "response_len/max", *longest);
}

}  // namespace

Metrics rollout_metrics(std::span<const RolloutFacts> samples) {
  Metrics metrics;
  if (samples.empty()) {
    return metrics;
  }
  std::vector<size_t> order(samples.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return samples[a].sample < samples[b].sample;
  });
  RunningMean raw, shaped, trained, sampled, reference, advantages, returns, entropy;
  RunningMean total_length, truncated, repeating, version, mixed;
  std::vector<double> lengths;
  int64_t oldest = samples.front().oldest_version;
  int64_t newest = samples.front().newest_version;
  for (const size_t i : order) {
    const RolloutFacts& one = samples[i];
    if (one.raw_reward) {
      raw.add(*one.raw_reward);
    }
    if (one.reward) {
      shaped.add(*one.reward);
    }
    trained.add_masked(one.logprobs, one.mask);
    sampled.add_masked(one.rollout_logprobs, one.mask);
    reference.add_masked(one.ref_logprobs, one.mask);
    advantages.add_masked(one.advantages, one.mask);
    returns.add_masked(one.returns, one.mask);
    entropy.add_masked(one.entropy, one.mask);
    const auto length = static_cast<double>(one.mask.size());
    lengths.push_back(length);
    total_length.add(length + static_cast<double>(one.prompt_tokens));
    truncated.add(one.end == SampleEnd::kTruncated ? 1.0 : 0.0);
    repeating.add(repeats_at_end(one.tokens) ? 1.0 : 0.0);
    version.add(0.5 * static_cast<double>(one.oldest_version + one.newest_version));
    mixed.add(one.oldest_version != one.newest_version ? 1.0 : 0.0);
    oldest = std::min(oldest, one.oldest_version);
    newest = std::max(newest, one.newest_version);
  }
  raw.write(metrics, "raw_reward");
  shaped.write(metrics, "rewards");
  trained.write(metrics, "log_probs");
  sampled.write(metrics, "rollout_log_probs");
  reference.write(metrics, "ref_log_probs");
  advantages.write(metrics, "advantages");
  returns.write(metrics, "returns");
  entropy.write(metrics, "entropy");
  write_lengths("rollout/", lengths, metrics);
  total_length.write(metrics, "total_lengths");
  truncated.write(metrics, "truncated_ratio");
  repeating.write(metrics, "repetition_frac");
  metrics.emplace_back("rollout/weight_version/min", static_cast<double>(oldest));
  metrics.emplace_back("rollout/weight_version/max", static_cast<double>(newest));
  version.write(metrics, "weight_version/mean");
  mixed.write(metrics, "mixed_version_ratio");
  return metrics;
}

Metrics eval_metrics(const std::string& set, std::span<const EvalAnswer> answers) {
  Metrics metrics;
  if (answers.empty()) {
    return metrics;
  }
  std::vector<EvalAnswer> ordered(answers.begin(), answers.end());
  std::sort(ordered.begin(), ordered.end(), [](const EvalAnswer& a, const EvalAnswer& b) {
    return std::pair(a.prompt, a.sample) < std::pair(b.prompt, b.sample);
  });
  struct PromptSum {
    int64_t answers = 0;
    int64_t right = 0;
    double score = 0.0;
  };
  std::map<int64_t, PromptSum> prompts;
  RunningMean truncated;
  std::vector<double> lengths;
  double score = 0.0;
  for (const EvalAnswer& answer : ordered) {
    PromptSum& prompt = prompts[answer.prompt];
    ++prompt.answers;
    prompt.right += answer.right ? 1 : 0;
    prompt.score += answer.score;
    score += answer.score;
    truncated.add(answer.truncated ? 1.0 : 0.0);
    lengths.push_back(static_cast<double>(answer.response_len));
  }
  const std::string prefix = "eval/" + set;
  metrics.emplace_back(prefix, score / static_cast<double>(ordered.size()));
  const auto count = static_cast<double>(prompts.size());
  int64_t fewest = prompts.begin()->second.answers;
  double mean = 0.0;
  for (const auto& [id, prompt] : prompts) {
    fewest = std::min(fewest, prompt.answers);
    mean += prompt.score / static_cast<double>(prompt.answers) / count;
  }
  if (prompts.size() > 1) {
    double squares = 0.0;
    for (const auto& [id, prompt] : prompts) {
      const double gap = prompt.score / static_cast<double>(prompt.answers) - mean;
      squares += gap * gap;
    }
    metrics.emplace_back(prefix + "-stderr", std::sqrt(squares / (count - 1.0) / count));
  }
  for (int64_t k = 1; k <= fewest; k *= 2) {
    double sum = 0.0;
    for (const auto& [id, prompt] : prompts) {
      sum += pass_at_k(prompt.answers, prompt.right, k);
    }
    metrics.emplace_back(prefix + "-pass@" + std::to_string(k), sum / count);
  }
  metrics.emplace_back(prefix + "-truncated_ratio", truncated.sum / truncated.count);
  write_lengths(prefix + "-", lengths, metrics);
  return metrics;
}

}  // namespace baleen::policy
