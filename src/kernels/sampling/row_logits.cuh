#pragma once
// Logits of one row after bias, penalties and masks, read by warps in groups of 128 columns: lane l
// holds columns 128 g + 4 l .. + 3. Reading twice gives the same bits, so later passes read again
// (from L2) instead of keeping the row. Also the order of candidates and the exact z.
//
//   RowLogits row(batch, r, arena.rules);
//   float4 x = row.group(g, row.raw(g), row.touched(g / 8), &bad);
//   uint32_t key = order_key(x.x);

#include <cmath>
#include <cstdint>

#include "kernels/ptx/read_only_load.cuh"
#include "kernels/sampling/sampling_rows.h"

namespace baleen::kernels {

inline constexpr uint32_t kAllLanes = 0xFFFFFFFFU;
inline constexpr int kGroupColumns = 128;
inline constexpr int kLeafColumns = 1024;
inline constexpr int kLeafGroups = kLeafColumns / kGroupColumns;
inline constexpr int kMostLeaves = kMostSampledVocab / kLeafColumns;
inline constexpr uint32_t kLowestKey = 0x007FFFFFU;  // of -inf; finite numbers lie above

__device__ __forceinline__ float minus_infinity() {
  return -__int_as_float(0x7F800000);
}

/// Unsigned order of floats: -0 and +0 are one number. No NaN.
__device__ __forceinline__ uint32_t order_key(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0F));  // -0 + 0 = +0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float key_value(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

/// Larger is better: the key first, then the lower id.
__device__ __forceinline__ uint64_t candidate_of(uint32_t key, int32_t id) {
  return (static_cast<uint64_t>(key) << 32) | (0xFFFFFFFFU - static_cast<uint32_t>(id));
}
__device__ __forceinline__ uint32_t candidate_key(uint64_t candidate) {
  return static_cast<uint32_t>(candidate >> 32);
}
__device__ __forceinline__ int32_t candidate_id(uint64_t candidate) {
  return static_cast<int32_t>(0xFFFFFFFFU - static_cast<uint32_t>(candidate));
}

/// What may change a logit besides temperature; one copy per block, in shared memory.
struct RowRules {
  SamplingRow params;
  const int32_t* counts;  // null when nothing is penalised
  const uint32_t* mask;
  const TokenBias* biases;
  const int32_t* forbidden;
  const int32_t* chain;
  int32_t num_chain;  // 0 when nothing is penalised
  bool changes;       // anything above applies

  __device__ void fill(const SamplingBatch& batch, int32_t r) {
    params = batch.rows[r];
    const bool penalised = params.frequency_penalty != 0.0F || params.presence_penalty != 0.0F ||
                           params.repetition_penalty != 1.0F;
    const bool has_counts = penalised && batch.counts != nullptr && params.counts_row >= 0;
    counts = has_counts ? batch.counts + params.counts_row * batch.counts_stride : nullptr;
    const bool has_mask = batch.masks != nullptr && params.mask_row >= 0;
    mask = has_mask ? batch.masks + params.mask_row * batch.mask_stride : nullptr;
    biases = batch.biases + params.bias_begin;
    forbidden = batch.forbidden + params.forbidden_begin;
    chain = batch.chain + params.chain_begin;
    num_chain = penalised ? params.chain_count : 0;
    changes = has_counts || has_mask || params.bias_count > 0 || params.forbidden_count > 0 ||
              num_chain > 0;
  }
};

/// Whether a list names a column of this leaf; all lanes call and get the answer.
static __device__ __noinline__ bool lists_touch(const RowRules& rules, int leaf) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool found = false;
  for (int i = lane; i < rules.params.bias_count; i += 32) {
    found |= rules.biases[i].id / kLeafColumns == leaf;
  }
  for (int i = lane; i < rules.params.forbidden_count; i += 32) {
    found |= rules.forbidden[i] / kLeafColumns == leaf;
  }
  for (int i = lane; i < rules.num_chain; i += 32) {
    found |= rules.chain[i] / kLeafColumns == leaf;
  }
  return __any_sync(kAllLanes, found) != 0;
}

__device__ __forceinline__ float penalised_logit(const SamplingRow& p, float x, int count) {
  // A quotient that overflows stays at the largest finite number.
  float y = x > 0.0F ? fminf(__fdiv_rn(x, p.repetition_penalty), 3.402823466e38F)
                     : __fmul_rn(x, p.repetition_penalty);
  y = __fsub_rn(y, __fmul_rn(p.frequency_penalty, static_cast<float>(count)));
  return __fsub_rn(y, p.presence_penalty);
}

/// Bias, penalties, masks on four columns from `column` on. Out of line: most rows have none.
static __device__ __noinline__ float4
apply_rules(const RowRules& rules, float4 four, int column, int vocab, bool touched) {
  const SamplingRow& p = rules.params;
  float x[4] = {four.x, four.y, four.z, four.w};
  int n[4] = {0, 0, 0, 0};
  if (rules.counts != nullptr && column < vocab) {
    const int4 seen = __ldg(reinterpret_cast<const int4*>(rules.counts + column));
    n[0] = seen.x, n[1] = seen.y, n[2] = seen.z, n[3] = seen.w;
  }
  for (int i = 0; touched && i < p.bias_count; ++i) {
    const TokenBias bias = rules.biases[i];
    const int at = bias.id - column;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      x[c] = at == c ? __fadd_rn(x[c], bias.bias) : x[c];
    }
  }
  for (int i = 0; touched && i < rules.num_chain; ++i) {
    const int at = rules.chain[i] - column;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      n[c] += at == c ? 1 : 0;
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (n[c] > 0) {
      x[c] = penalised_logit(p, x[c], n[c]);
    }
  }
  if (rules.mask != nullptr && column < vocab) {
    const uint32_t bits = __ldg(rules.mask + column / 32) >> (column % 32);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      x[c] = (bits >> c & 1U) != 0 ? x[c] : minus_infinity();
    }
  }
  for (int i = 0; touched && i < p.forbidden_count; ++i) {
    const int at = rules.forbidden[i] - column;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      x[c] = at == c ? minus_infinity() : x[c];
    }
  }
  return make_float4(x[0], x[1], x[2], x[3]);
}

class RowLogits {
 public:
  /// `shared_rules` must be filled before anything but raw() is called.
  __device__ RowLogits(const SamplingBatch& batch, int32_t r, const RowRules& shared_rules)
      : rules(shared_rules),
        params(shared_rules.params),
        vocab(batch.vocab),
        num_leaves((batch.vocab + kLeafColumns - 1) / kLeafColumns),
        logits_(batch.logits + static_cast<int64_t>(r) * batch.row_stride) {}

  /// Exact z of a transformed logit.
  __device__ double z(float x) const {
    return params.temperature == 0.0F || params.temperature == 1.0F
               ? static_cast<double>(x)
               : __ddiv_rn(static_cast<double>(x), static_cast<double>(params.temperature));
  }

  __device__ __forceinline__ float4 raw(int group) const {
    const int column = first_column(group);
    return column < vocab ? ptx::load_static(logits_ + column)
                          : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  }

  __device__ __forceinline__ bool touched(int leaf) const {
    return rules.changes && lists_touch(rules, leaf);
  }

  /// Transformed values of the lane's four columns. Sets `bad` when a logit is NaN or +inf; that
  /// one becomes -inf.
  __device__ __forceinline__ float4 group(int group, float4 x, bool touched, bool& bad) const {
    const int column = first_column(group);
    x.x = checked(x.x, column, bad);
    x.y = checked(x.y, column + 1, bad);
    x.z = checked(x.z, column + 2, bad);
    x.w = checked(x.w, column + 3, bad);
    return rules.changes ? apply_rules(rules, x, column, vocab, touched) : x;
  }

  /// Whether a leaf's raw values can stand for the transformed ones while no NaN or +inf turns up.
  __device__ __forceinline__ bool is_plain(int leaf) const {
    return !rules.changes && (leaf + 1) * kLeafColumns <= vocab;
  }

  /// Transformed value of one id, by a whole warp.
  __device__ float at(int32_t id) const {
    const int number = id / kGroupColumns;
    bool bad = false;
    const float4 x = group(number, raw(number), touched(id / kLeafColumns), bad);
    const float low = id % 2 == 0 ? x.x : x.y;
    const float high = id % 2 == 0 ? x.z : x.w;
    return __shfl_sync(kAllLanes, id % 4 < 2 ? low : high, id % kGroupColumns / 4);
  }

  const RowRules& rules;
  const SamplingRow& params;
  int32_t vocab;
  int32_t num_leaves;

 private:
  __device__ __forceinline__ static int first_column(int group) {
    return group * kGroupColumns + static_cast<int>(threadIdx.x) % 32 * 4;
  }
  __device__ __forceinline__ float checked(float x, int column, bool& bad) const {
    const bool outside = column >= vocab;
    const bool wrong = !(x < __int_as_float(0x7F800000));
    bad |= wrong && !outside;
    return wrong || outside ? minus_infinity() : x;
  }

  const float* logits_;
};

}  // namespace baleen::kernels
