#include "policy/drift.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::policy {
namespace {

constexpr double kClampedK3 = 10.0;
constexpr int64_t kEntropyBins = 10;
constexpr size_t kWorstSamples = 8;

struct MeasuredToken {
  double delta = 0.0;
  bool exact = false;
  int64_t position = 0;
  double entropy = 0.0;
  bool after_pause = false;
};

double k3_of(double delta) {
  return std::expm1(delta) - delta;
}

bool same_float(double a, double b) {
  return std::bit_cast<uint32_t>(static_cast<float>(a)) ==
         std::bit_cast<uint32_t>(static_cast<float>(b));
}

void check_row(const DriftRow& row) {
  const auto check = [&](const char* name, size_t length, bool required) {
    if (length != row.mask.size() && (required || length != 0)) {
      throw Error(fmt::format(
          "sample {}: {} has {} entries, the mask {}", row.sample, name, length, row.mask.size()));
    }
  };
  check("train log-probabilities", row.train.size(), true);
  check("rollout log-probabilities", row.rollout.size(), true);
  check("prefill log-probabilities", row.prefill.size(), false);
  check("entropy", row.entropy.size(), false);
  check("after_pause", row.after_pause.size(), false);
  for (size_t t = 0; t < row.mask.size(); ++t) {
    if (row.mask[t] != 0 && !(std::isfinite(row.train[t]) && std::isfinite(row.rollout[t]))) {
      throw Error(fmt::format("sample {}, response token {}: log-probabilities {} and {}",
                              row.sample,
                              t,
                              row.train[t],
                              row.rollout[t]));
    }
  }
}

DriftNumbers numbers_of(std::span<const MeasuredToken> tokens) {
  DriftNumbers result;
  result.tokens = static_cast<int64_t>(tokens.size());
  if (tokens.empty()) {
    return result;
  }
  std::vector<double> sizes;
  sizes.reserve(tokens.size());
  double exact = 0.0;
  double extreme = 0.0;
  for (const MeasuredToken& token : tokens) {
    const double size = std::abs(token.delta);
    sizes.push_back(size);
    result.mean_abs += size;
    result.signed_mean += token.delta;
    result.k3 += k3_of(token.delta);
    extreme += size > std::numbers::ln2 ? 1.0 : 0.0;
    exact += token.exact ? 1.0 : 0.0;
  }
  const auto count = static_cast<double>(tokens.size());
  result.mean_abs /= count;
  result.signed_mean /= count;
  result.k3 /= count;
  result.extreme_frac = extreme / count;
  result.exact_frac = exact / count;
  std::sort(sizes.begin(), sizes.end());
  const auto covering = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * count));
    return sizes[std::max<size_t>(rank, 1) - 1];
  };
  result.p50 = covering(0.50);
  result.p90 = covering(0.90);
  result.p99 = covering(0.99);
  result.max = sizes.back();
  return result;
}

std::vector<DriftReport::Named> position_buckets(std::span<const MeasuredToken> tokens,
                                                 const DriftConfig& config) {
  std::vector<int64_t> edges = {128, 512, 16384};
  if (config.index_topk > 0) {
    edges.push_back(4 * config.index_topk);
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::vector<std::vector<MeasuredToken>> buckets(edges.size() + 1);
  for (const MeasuredToken& token : tokens) {
    const auto edge = std::lower_bound(edges.begin(), edges.end(), token.position);
    buckets[static_cast<size_t>(edge - edges.begin())].push_back(token);
  }
  std::vector<DriftReport::Named> named;
  for (size_t b = 0; b < buckets.size(); ++b) {
    if (!buckets[b].empty()) {
      named.push_back(
          {b < edges.size() ? fmt::format("le_{}", edges[b]) : fmt::format("gt_{}", edges.back()),
           numbers_of(buckets[b])});
    }
  }
  return named;
}

std::vector<DriftReport::Named> entropy_deciles(std::vector<MeasuredToken> tokens) {
  std::stable_sort(
      tokens.begin(), tokens.end(), [](const MeasuredToken& a, const MeasuredToken& b) {
        return a.entropy < b.entropy;
      });
  std::vector<DriftReport::Named> named;
  const auto count = static_cast<int64_t>(tokens.size());
  for (int64_t bin = 0; bin < kEntropyBins; ++bin) {
    const int64_t begin = count * bin / kEntropyBins;
    const int64_t end = count * (bin + 1) / kEntropyBins;
    if (begin < end) {
      const std::span<const MeasuredToken> part(tokens.data() + begin,
                                                static_cast<size_t>(end - begin));
      named.push_back({fmt::format("d{}", bin), numbers_of(part)});
    }
  }
  return named;
}

double correlation(std::span<const double> x, std::span<const double> y) {
  const auto count = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / count;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / count;
  double xx = 0.0;
  double yy = 0.0;
  double xy = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
  }
  if (!(xx > 0.0) || !(yy > 0.0)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return xy / std::sqrt(xx * yy);
}

/// Walks the rows in order of sample and gathers what the report is made of.
class DriftGatherer {
 public:
  void add(const DriftRow& row) {
    double sum = 0.0;
    double sum_abs = 0.0;
    int64_t count = 0;
    for (size_t t = 0; t < row.mask.size(); ++t) {
      if (row.mask[t] == 0) {
        continue;
      }
      MeasuredToken token;
      token.delta = row.train[t] - row.rollout[t];
      token.exact = same_float(row.train[t], row.rollout[t]);
      token.position = row.prompt_tokens + static_cast<int64_t>(t);
      token.entropy = row.entropy.empty() ? 0.0 : row.entropy[t];
      token.after_pause = !row.after_pause.empty() && row.after_pause[t] != 0;
      tokens.push_back(token);
      train_probs.push_back(std::exp(row.train[t]));
      rollout_probs.push_back(std::exp(row.rollout[t]));
      if (!row.prefill.empty()) {
        decode_vs_prefill += std::abs(row.prefill[t] - row.rollout[t]);
        prefill_vs_train += std::abs(row.train[t] - row.prefill[t]);
        prefill_tokens += 1.0;
      }
      sum += token.delta;
      sum_abs += std::abs(token.delta);
      clamped_k3 += std::min(k3_of(token.delta), kClampedK3);
      ++count;
    }
    if (count > 0) {
      rows += 1.0;
      seq_abs += std::abs(sum);
      seq_abs_per_token += std::abs(sum) / static_cast<double>(count);
      sample_mean_abs += sum_abs / static_cast<double>(count);
      by_size.emplace_back(-sum_abs / static_cast<double>(count), row.sample);
    }
    has_entropy = has_entropy && !row.entropy.empty();
  }

  std::vector<MeasuredToken> tokens;
  std::vector<double> train_probs;
  std::vector<double> rollout_probs;
  double decode_vs_prefill = 0.0;
  double prefill_vs_train = 0.0;
  double prefill_tokens = 0.0;
  double clamped_k3 = 0.0;
  double rows = 0.0;
  double seq_abs = 0.0;
  double seq_abs_per_token = 0.0;
  double sample_mean_abs = 0.0;
  std::vector<std::pair<double, int64_t>> by_size;  // rows, the largest drift first once sorted
  bool has_entropy = true;
};

void put_numbers(Metrics& metrics, const std::string& prefix, const DriftNumbers& numbers) {
  metrics.emplace_back(prefix + "mean_abs", numbers.mean_abs);
  metrics.emplace_back(prefix + "p50", numbers.p50);
  metrics.emplace_back(prefix + "p90", numbers.p90);
  metrics.emplace_back(prefix + "p99", numbers.p99);
  metrics.emplace_back(prefix + "max", numbers.max);
  metrics.emplace_back(prefix + "k3", numbers.k3);
  metrics.emplace_back(prefix + "signed_mean", numbers.signed_mean);
  metrics.emplace_back(prefix + "extreme_frac", numbers.extreme_frac);
  metrics.emplace_back(prefix + "exact_frac", numbers.exact_frac);
}

}  // namespace

DriftReport measure_drift(std::span<const DriftRow> rows, const DriftConfig& config) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(rows[a].sample, rows[a].segment) < std::pair(rows[b].sample, rows[b].segment);
  });
  DriftReport report;
  DriftGatherer gathered;
  for (const size_t i : order) {
    check_row(rows[i]);
    if (rows[i].fresh) {
      gathered.add(rows[i]);
    } else {
      ++report.stale_rows;
    }
  }
  report.rows = static_cast<int64_t>(gathered.rows);
  report.all = numbers_of(gathered.tokens);
  if (gathered.tokens.empty()) {
    report.prob_pearson = std::numeric_limits<double>::quiet_NaN();
    return report;
  }
  report.seq_abs_mean = gathered.seq_abs / gathered.rows;
  report.seq_abs_mean_per_token = gathered.seq_abs_per_token / gathered.rows;
  report.sample_mean_abs = gathered.sample_mean_abs / gathered.rows;
  std::sort(gathered.by_size.begin(), gathered.by_size.end());
  for (const auto& [size, sample] : gathered.by_size) {
    if (size < 0.0 && report.worst_samples.size() < kWorstSamples) {
      report.worst_samples.push_back(sample);
    }
  }
  report.prob_pearson = correlation(gathered.train_probs, gathered.rollout_probs);
  report.train_rollout_kl = gathered.clamped_k3 / static_cast<double>(gathered.tokens.size());
  report.by_position = position_buckets(gathered.tokens, config);
  std::vector<MeasuredToken> paused;
  std::copy_if(gathered.tokens.begin(),
               gathered.tokens.end(),
               std::back_inserter(paused),
               [](const MeasuredToken& token) { return token.after_pause; });
  report.after_pause = numbers_of(paused);
  if (gathered.has_entropy) {
    report.by_entropy = entropy_deciles(std::move(gathered.tokens));
  }
  if (gathered.prefill_tokens > 0.0) {
    report.has_prefill = true;
    report.decode_vs_prefill = gathered.decode_vs_prefill / gathered.prefill_tokens;
    report.prefill_vs_train = gathered.prefill_vs_train / gathered.prefill_tokens;
  }
  return report;
}

Metrics DriftReport::metrics() const {
  Metrics metrics;
  put_numbers(metrics, "drift/", all);
  metrics.emplace_back("drift/prob_pearson", prob_pearson);
  metrics.emplace_back("drift/seq_abs_mean", seq_abs_mean);
  metrics.emplace_back("drift/seq_abs_mean_per_token", seq_abs_mean_per_token);
  metrics.emplace_back("drift/tokens", static_cast<double>(all.tokens));
  metrics.emplace_back("drift/stale_rows", static_cast<double>(stale_rows));
  for (const Named& bucket : by_position) {
    metrics.emplace_back("drift/by_pos/" + bucket.name, bucket.numbers.mean_abs);
  }
  for (const Named& decile : by_entropy) {
    metrics.emplace_back("drift/by_entropy/" + decile.name, decile.numbers.mean_abs);
  }
  if (after_pause.tokens > 0) {
    metrics.emplace_back("drift/after_pause", after_pause.mean_abs);
  }
  if (has_prefill) {
    metrics.emplace_back("drift/decode_vs_prefill", decode_vs_prefill);
    metrics.emplace_back("drift/prefill_vs_train", prefill_vs_train);
  }
  metrics.emplace_back("train/train_rollout_logprob_abs_diff", sample_mean_abs);
  metrics.emplace_back("train/train_rollout_kl", train_rollout_kl);
  return metrics;
}

}  // namespace baleen::policy
