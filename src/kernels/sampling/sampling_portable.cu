#include "base/check.h"
#include "device/launch.h"
#include "kernels/sampling/gumbel_noise.h"
#include "kernels/sampling/row_logits.cuh"
#include "kernels/sampling/sampling_checks.h"

namespace baleen::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

/// One row as its block sees it: every step is a pass over all tokens.
struct PortableRow {
  const RowRules* rules;
  const float* logits;
  int32_t vocab;

  __device__ float x(int32_t id, bool& bad) const {
    float value = logits[id];
    if (!(value < __int_as_float(0x7F800000))) {
      bad = true;
      value = minus_infinity();
    }
    const SamplingRow& p = rules->params;
    for (int i = 0; i < p.bias_count; ++i) {
      value = rules->biases[i].id == id ? __fadd_rn(value, rules->biases[i].bias) : value;
    }
    int count = rules->counts == nullptr ? 0 : rules->counts[id];
    for (int i = 0; i < rules->num_chain; ++i) {
      count += rules->chain[i] == id ? 1 : 0;
    }
    value = count > 0 ? penalised_logit(p, value, count) : value;
    bool allowed = rules->mask == nullptr || (rules->mask[id / 32] >> (id % 32) & 1U) != 0;
    for (int i = 0; i < p.forbidden_count; ++i) {
      allowed = allowed && rules->forbidden[i] != id;
    }
    return allowed ? value : minus_infinity();
  }
  __device__ double z(float value) const {
    const float t = rules->params.temperature;
    return t == 0.0F || t == 1.0F ? double{value} : __ddiv_rn(double{value}, double{t});
  }
};

struct Border {  // keeps larger keys, and of equal ones the ids up to last_id
  uint32_t key = kLowestKey;
  int32_t last_id = -1;
  __device__ bool keeps(uint32_t k, int32_t id) const {
    return k > key || (k == key && id <= last_id);
  }
};

/// Sum over all tokens of term(id, x), in one fixed order, known to every thread.
template <class Term>
__device__ double sum_over(const PortableRow& row, Term term) {
  __shared__ double parts[kWarps];
  double sum = 0.0;
  for (int32_t id = static_cast<int32_t>(threadIdx.x); id < row.vocab; id += kThreads) {
    bool bad = false;
    sum += term(id, row.x(id, bad));
  }
  for (int distance = 1; distance < 32; distance *= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  sum = 0.0;
  for (int w = 0; w < kWarps; ++w) {
    sum += parts[w];
  }
  return sum;
}

struct Best {
  double score;
  int32_t id;
};

/// The token with the largest score(id, x), lower id on ties, of those that want(id, x) accepts.
template <class Want, class Score>
__device__ Best best_over(const PortableRow& row, Want want, Score score) {
  __shared__ double scores[kWarps];
  __shared__ int32_t ids[kWarps];
  Best best = {0.0, -1};
  const auto take = [&best](double s, int32_t id) {
    if (id >= 0 && (best.id < 0 || s > best.score || (s == best.score && id < best.id))) {
      best = {s, id};
    }
  };
  for (int32_t id = static_cast<int32_t>(threadIdx.x); id < row.vocab; id += kThreads) {
    bool bad = false;
    const float x = row.x(id, bad);
    if (want(id, x)) {
      take(score(id, x), id);
    }
  }
  for (int distance = 1; distance < 32; distance *= 2) {
    const double s = __shfl_xor_sync(kAllLanes, best.score, distance);
    take(s, __shfl_xor_sync(kAllLanes, best.id, distance));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    scores[threadIdx.x / 32] = best.score;
    ids[threadIdx.x / 32] = best.id;
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    take(scores[w], ids[w]);
  }
  return best;
}

/// The shortest best-first run of weight `target` of the tokens that `within` keeps, by bisection
/// over keys, then over ids.
template <class Weight>
__device__ Border find_run(const PortableRow& row, Border within, double target, Weight weight) {
  uint32_t low = kLowestKey;  // its run reaches the target
  uint32_t high = 0xFFFFFFFFU;
  const auto weight_from = [&](uint32_t least) {
    return sum_over(row, [&](int32_t id, float x) {
      const uint32_t key = order_key(x);
      return key >= least && within.keeps(key, id) ? weight(x) : 0.0;
    });
  };
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (weight_from(middle) >= target ? low : high) = middle;
  }
  if (low == kLowestKey) {
    return within;
  }
  const double before = weight_from(low + 1);
  int32_t first = -1;  // ties up to here miss the target
  int32_t last = row.vocab - 1;
  while (last - first > 1) {
    const int32_t middle = first + (last - first) / 2;
    const double ties = sum_over(row, [&](int32_t id, float x) {
      return order_key(x) == low && id <= middle && within.keeps(low, id) ? weight(x) : 0.0;
    });
    (before + ties >= target ? last : first) = middle;
  }
  return {low, last};
}

__global__ void __launch_bounds__(kThreads)
    portable_sample_kernel(const __grid_constant__ SamplingBatch batch) {
  __shared__ __align__(16) uint8_t rules_memory[sizeof(RowRules)];
  RowRules& rules = *reinterpret_cast<RowRules*>(rules_memory);
  const auto r = static_cast<int32_t>(blockIdx.x);
  if (threadIdx.x == 0) {
    rules.fill(batch, r);
  }
  __syncthreads();
  const PortableRow row{&rules, batch.logits + r * batch.row_stride, batch.vocab};
  const SamplingRow& p = rules.params;
  const bool bad = sum_over(row, [&](int32_t id, float) {
                     bool wrong = false;
                     row.x(id, wrong);
                     return wrong ? 1.0 : 0.0;
                   }) > 0.0;
  const auto finite = [](int32_t, float x) { return x > minus_infinity(); };
  const auto by_logit = [](int32_t, float x) { return double{x}; };
  const Best top = best_over(row, finite, by_logit);
  SampledRow out;
  if (top.id < 0) {
    out.status =
        static_cast<int32_t>(bad ? SamplingStatus::kNotFinite : SamplingStatus::kNoCandidate);
    if (threadIdx.x == 0) {
      batch.sampled[r] = out;
    }
    return;
  }
  const double best = row.z(static_cast<float>(top.score));
  const auto mass = [&](float x) { return x > minus_infinity() ? exp(row.z(x) - best) : 0.0; };
  const double log_sum = log(sum_over(row, [&](int32_t, float x) { return mass(x); }));
  const auto logprob = [&](float x) { return static_cast<float>(row.z(x) - best - log_sum); };

  Best listed = {0.0, -1};
  for (int i = 0; i < min(p.num_top, kMostTopLogprobs) && batch.top_ids != nullptr; ++i) {
    const Best last = listed;
    listed = best_over(
        row,
        [&](int32_t id, float x) {
          return x > minus_infinity() &&
                 (i == 0 || double{x} < last.score || (double{x} == last.score && id > last.id));
        },
        by_logit);
    if (listed.id < 0) {
      break;
    }
    out.num_top = i + 1;
    if (threadIdx.x == 0) {
      batch.top_ids[int64_t{r} * kMostTopLogprobs + i] = listed.id;
      batch.top_logprobs[int64_t{r} * kMostTopLogprobs + i] =
          logprob(static_cast<float>(listed.score));
    }
  }

  out.status = static_cast<int32_t>(bad ? SamplingStatus::kNotFinite : SamplingStatus::kDrawn);
  out.id = top.id;
  if (p.forced_id >= 0) {
    out.id = p.forced_id;
  } else if (p.temperature != 0.0F && !bad) {
    Border kept;
    if (p.top_k > 0) {
      kept = find_run(row, kept, p.top_k, [](float) { return 1.0; });
    }
    if (p.top_p < 1.0F) {
      const double total = sum_over(
          row, [&](int32_t id, float x) { return kept.keeps(order_key(x), id) ? mass(x) : 0.0; });
      kept = find_run(row, kept, double{p.top_p} * total, mass);
    }
    out.id =
        best_over(
            row,
            [&](int32_t id, float x) {
              return kept.keeps(order_key(x), id) && !(p.min_p > 0.0F && mass(x) < double{p.min_p});
            },
            [&](int32_t id, float x) {
              return row.z(x) +
                     gumbel_noise(p.seed, p.sample_index, p.position, id, kSamplingStream);
            })
            .id;
  }
  if (threadIdx.x == 0) {
    bool wrong = false;
    out.logprob = logprob(row.x(out.id, wrong));
    batch.sampled[r] = out;
  }
}

}  // namespace

void sample_rows_portable(const SamplingBatch& batch, device::StreamHandle stream) {
  check_sampling_batch(batch);
  if (batch.num_rows == 0) {
    return;
  }
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(batch.num_rows)), .block = dim3(kThreads)},
                 portable_sample_kernel,
                 batch);
}

}  // namespace baleen::kernels
