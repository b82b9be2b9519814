#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "kernels/sampling/gumbel_noise.h"
#include "kernels/sampling/sampling.h"

namespace baleen::kernels {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr size_t kFirstSortedRun = 256;  // ids sorted at first when looking for the top_p border

/// Total order of candidates: larger z first, then the lower id.
struct Better {
  const double* z;
  bool operator()(int32_t a, int32_t b) const {
    const double za = z[static_cast<size_t>(a)];
    const double zb = z[static_cast<size_t>(b)];
    return za > zb || (za == zb && a < b);
  }
};

void check_params(const SamplingParams& p, size_t vocab, std::span<const int32_t> counts) {
  BALEEN_CHECK(vocab > 0 && (counts.empty() || counts.size() == vocab),
               "vocab={} counts={}",
               vocab,
               counts.size());
  BALEEN_CHECK(p.temperature >= 0.0F && p.top_p > 0.0F && p.repetition_penalty > 0.0F &&
                   (p.top_k == -1 || p.top_k >= 1),
               "temperature={} top_p={} repetition={} top_k={}",
               p.temperature,
               p.top_p,
               p.repetition_penalty,
               p.top_k);
  BALEEN_CHECK(p.allowed_bits.empty() || p.allowed_bits.size() >= (vocab + 31) / 32,
               "mask words={} vocab={}",
               p.allowed_bits.size(),
               vocab);
}

/// Steps 1 to 4; false when a logit is NaN or +inf.
bool transform(std::span<const float> logits,
               const SamplingParams& p,
               std::span<const int32_t> counts,
               std::vector<double>& z) {
  const size_t vocab = logits.size();
  const auto index = [&](int32_t id) {
    BALEEN_CHECK(id >= 0 && static_cast<size_t>(id) < vocab, "id={} vocab={}", id, vocab);
    return static_cast<size_t>(id);
  };
  z.resize(vocab);
  for (size_t i = 0; i < vocab; ++i) {
    if (!(logits[i] < std::numeric_limits<float>::infinity())) {
      return false;
    }
    z[i] = logits[i];
  }
  for (const auto& [id, bias] : p.logit_bias) {
    double& value = z[index(id)];
    value = static_cast<float>(value) + bias;
  }
  const bool penalised =
      p.frequency_penalty != 0.0F || p.presence_penalty != 0.0F || p.repetition_penalty != 1.0F;
  if (penalised) {
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) {
        auto x = static_cast<float>(z[i]);
        // An infinity here would make every log-prob of the row a NaN.
        x = x > 0 ? std::min(x / p.repetition_penalty, std::numeric_limits<float>::max())
                  : x * p.repetition_penalty;
        x -= p.frequency_penalty * static_cast<float>(counts[i]);
        x -= p.presence_penalty;
        z[i] = x;
      }
    }
  }
  if (p.temperature != 0.0F && p.temperature != 1.0F) {
    for (double& value : z) {
      value /= double{p.temperature};
    }
  }
  for (size_t i = 0; !p.allowed_bits.empty() && i < vocab; ++i) {
    if ((p.allowed_bits[i / 32] >> (i % 32) & 1U) == 0) {
      z[i] = kMinusInfinity;
    }
  }
  for (const int32_t id : p.forbidden_ids) {
    z[index(id)] = kMinusInfinity;
  }
  return true;
}

/// Cuts `ids` (all candidates or the top k, in any order) to the shortest best-first run that
/// reaches top_p.
void keep_nucleus(std::vector<int32_t>& ids, float top_p, double largest, const Better& better) {
  const auto mass = [&](int32_t id) {
    return std::exp(better.z[static_cast<size_t>(id)] - largest);
  };
  std::sort(ids.begin(), ids.end());
  double total = 0.0;
  for (const int32_t id : ids) {
    total += mass(id);
  }
  const double border = double{top_p} * total;
  double before = 0.0;
  size_t num_kept = 0;
  size_t num_sorted = 0;
  while (num_kept < ids.size() && before < border) {
    if (num_kept == num_sorted) {  // sort a longer run only when the mass is not reached yet
      const size_t run =
          std::min(std::max(kFirstSortedRun, num_sorted * 7), ids.size() - num_sorted);
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(num_sorted);
      std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(run), ids.end(), better);
      num_sorted += run;
    }
    before += mass(ids[num_kept++]);
  }
  ids.resize(num_kept);
}

void list_best(std::vector<int32_t>& ids,
               int32_t num_wanted,
               const Better& better,
               double largest,
               double log_sum,
               std::vector<ScoredToken>& top) {
  const size_t count = std::min(static_cast<size_t>(num_wanted), ids.size());
  std::partial_sort(
      ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(), better);
  for (size_t i = 0; i < count; ++i) {
    const double z = better.z[static_cast<size_t>(ids[i])];
    top.push_back({ids[i], static_cast<float>(z - largest - log_sum)});
  }
}

/// Step 6 over the kept ids.
int32_t draw(const std::vector<int32_t>& ids,
             const SamplingParams& p,
             double largest,
             const Better& better) {
  int32_t best_id = -1;
  double best = kMinusInfinity;
  const double least_ratio = double{p.min_p};
  for (const int32_t id : ids) {
    const double z = better.z[static_cast<size_t>(id)];
    // No noise can lift this token over the best so far: the same answer without computing it.
    if (z + kLargestGumbel < best) {
      continue;
    }
    if (least_ratio > 0.0 && std::exp(z - largest) < least_ratio) {
      continue;
    }
    const double score = z + gumbel_noise(p.seed, p.sample_index, p.position, id, p.stream);
    if (score > best || (score == best && id < best_id)) {
      best = score;
      best_id = id;
    }
  }
  return best_id;
}

/// Fills `ids` with all candidates in order of id and returns the best of them, -1 if there are
/// none.
int32_t list_candidates(const std::vector<double>& z, std::vector<int32_t>& ids) {
  const Better better{z.data()};
  ids.clear();
  int32_t best_id = -1;
  for (size_t i = 0; i < z.size(); ++i) {
    if (z[i] > kMinusInfinity) {
      const auto id = static_cast<int32_t>(i);
      ids.push_back(id);
      best_id = best_id < 0 || better(id, best_id) ? id : best_id;
    }
  }
  return best_id;
}

/// Cuts the candidates by top_k and top_p; in any order.
void keep_likely(std::vector<int32_t>& ids,
                 const SamplingParams& p,
                 double largest,
                 const Better& better) {
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < ids.size()) {
    std::nth_element(ids.begin(), ids.begin() + p.top_k, ids.end(), better);
    ids.resize(static_cast<size_t>(p.top_k));
  }
  if (p.top_p < 1.0F) {
    keep_nucleus(ids, p.top_p, largest, better);
  }
}

}  // namespace

SampledToken sample_token(std::span<const float> logits,
                          const SamplingParams& p,
                          std::span<const int32_t> counts,
                          SamplingWorkspace& workspace,
                          std::vector<ScoredToken>* top) {
  check_params(p, logits.size(), counts);
  if (!transform(logits, p, counts, workspace.z)) {
    return {SamplingStatus::kNotFinite, -1, 0.0F};
  }
  const std::vector<double>& z = workspace.z;
  const Better better{z.data()};
  std::vector<int32_t>& ids = workspace.order;
  const int32_t best_id = list_candidates(z, ids);
  if (best_id < 0) {
    return {SamplingStatus::kNoCandidate, -1, 0.0F};
  }
  const double largest = z[static_cast<size_t>(best_id)];

  double log_sum = 0.0;  // of exp(z - largest); apart from it, so that a huge z loses nothing
  if (p.want_logprob || p.top_logprobs > 0) {
    double sum = 0.0;
    for (const int32_t id : ids) {
      sum += std::exp(z[static_cast<size_t>(id)] - largest);
    }
    log_sum = std::log(sum);
  }
  SampledToken token;
  if (p.forced_id >= 0) {
    BALEEN_CHECK(static_cast<size_t>(p.forced_id) < z.size(), "forced_id={}", p.forced_id);
    token.id = p.forced_id;
  } else if (p.temperature == 0.0F) {
    token.id = best_id;
  }
  if (p.top_logprobs > 0) {
    BALEEN_CHECK(top != nullptr);
    list_best(ids, p.top_logprobs, better, largest, log_sum, *top);
  }
  if (token.id < 0) {
    keep_likely(ids, p, largest, better);
    token.id = draw(ids, p, largest, better);
  }
  if (p.want_logprob) {
    token.logprob = static_cast<float>(z[static_cast<size_t>(token.id)] - largest - log_sum);
  }
  return token;
}

SamplingStatus token_law(std::span<const float> logits,
                         const SamplingParams& p,
                         std::span<const int32_t> counts,
                         SamplingWorkspace& workspace,
                         std::vector<TokenProbability>& law) {
  law.clear();
  check_params(p, logits.size(), counts);
  if (!transform(logits, p, counts, workspace.z)) {
    return SamplingStatus::kNotFinite;
  }
  const std::vector<double>& z = workspace.z;
  std::vector<int32_t>& ids = workspace.order;
  const int32_t best_id = list_candidates(z, ids);
  if (best_id < 0) {
    return SamplingStatus::kNoCandidate;
  }
  if (p.forced_id >= 0 || p.temperature == 0.0F) {
    law.push_back({p.forced_id >= 0 ? p.forced_id : best_id, 1.0});
    return SamplingStatus::kDrawn;
  }
  const double largest = z[static_cast<size_t>(best_id)];
  keep_likely(ids, p, largest, Better{z.data()});
  std::sort(ids.begin(), ids.end());
  double sum = 0.0;
  for (const int32_t id : ids) {
    const double mass = std::exp(z[static_cast<size_t>(id)] - largest);
    if (mass >= double{p.min_p}) {
      law.push_back({id, mass});
      sum += mass;
    }
  }
  for (TokenProbability& token : law) {
    token.probability /= sum;
  }
  return SamplingStatus::kDrawn;
}

template <class T>
T plain_logprob(std::span<const T> logits, int32_t id) {
  BALEEN_CHECK(id >= 0 && static_cast<size_t>(id) < logits.size(), "id={}", id);
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const T logit : logits) {
    sum += std::exp(static_cast<double>(logit) - largest);
  }
  const auto chosen = static_cast<double>(logits[static_cast<size_t>(id)]);
  return static_cast<T>(chosen - largest - std::log(sum));
}

template float plain_logprob(std::span<const float>, int32_t);
template double plain_logprob(std::span<const double>, int32_t);

}  // namespace baleen::kernels
