#pragma once
// Roles of the compressors in a decode step: one row into a ring, and the pool of one completed
// group. The arithmetic is that of compressor_pool/pool_math.cuh, so that an entry has the bits a
// prefill gives it.
//
//   append_row<256>(ring_params, index, thread);      // 256 threads copy one token's row
//   pool_entry_c4(params, entry, row);                // 256 threads, two channels each

#include <type_traits>

#include "kernels/after_projection/token_roles.cuh"
#include "kernels/compressor_pool/pool_math.cuh"
#include "kernels/compressor_pool/pool_tail.cuh"
#include "kernels/ptx/cluster.cuh"

namespace baleen::kernels {

inline constexpr int kSlots = 8;           // of a ratio-4 window
inline constexpr int kDenseSlots = 128;    // of a ratio-128 window
inline constexpr int kDenseRunSlots = 16;  // a run: one warp
inline constexpr int kDenseCluster = 8;    // blocks that share the channels of a ratio-128 entry
inline constexpr int kDenseBlockDims = kKvDims / kDenseCluster;

__device__ __forceinline__ float4 add4(float4 a, float4 b) {
  return make_float4(
      __fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

/// kThreads threads copy the projected row of write `index`, position bias added to the scores. The
/// row of a decode step's write is nearly always the row of the same number: it is requested
/// together with the record, and once more when the record says otherwise.
template <int kThreads, int kWidth>
__device__ __forceinline__ void append_row(const CompressorRingParams& params,
                                           int32_t index,
                                           int thread) {
  constexpr int kQuads = kWidth / 4;
  constexpr int kPerThread = (kQuads + kThreads - 1) / kThreads;
  constexpr int kRatio = kWidth == kKvDims ? 128 : 4;
  const int32_t count =
      params.num_writes == nullptr ? params.max_writes : min(*params.num_writes, params.max_writes);
  const auto load = [&](int32_t row, float4(&u)[kPerThread], float4(&z)[kPerThread]) {
    const int64_t from = row * params.row_stride;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int at = thread + i * kThreads;
      if (at < kQuads) {
        u[i] = reinterpret_cast<const float4*>(params.rows + from)[at];
        z[i] = reinterpret_cast<const float4*>(params.rows + from)[kQuads + at];
      }
    }
  };
  const RingWriteEntry write = params.writes[index];
  float4 u[kPerThread];
  float4 z[kPerThread];
  load(index, u, z);
  if (index >= count || write.ring_row < 0) {
    return;
  }
  if (write.row != index) {
    load(write.row, u, z);
  }
  float* out = params.ring + static_cast<int64_t>(write.ring_row) * 2 * kWidth;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int at = thread + i * kThreads;
    if (at < kQuads) {
      if (params.ape != nullptr) {
        z[i] = add4(
            z[i],
            __ldg(reinterpret_cast<const float4*>(params.ape + write.position % kRatio * kWidth) +
                  at));
      }
      reinterpret_cast<float4*>(out)[at] = u[i];
      reinterpret_cast<float4*>(out)[kQuads + at] = z[i];
    }
  }
}

/// What kChannels neighbouring channels of a ratio-4 window need from memory, slot order.
template <int kChannels>
struct Window8 {
  using Vector = std::conditional_t<kChannels == 4, float4, float2>;
  Vector values[kSlots];
  Vector scores[kSlots];
  Vector bias[kSlots];  // position bias; in the ring it is added already
};

/// All addresses are chosen without branches, so that every load is in flight before the first is
/// used. Slots that do not exist read the group's last row, and are masked when they are pooled.
template <int kDims, int kChannels>
__device__ __forceinline__ void request_window8(const CompressorPoolParams& params,
                                                const CompressorPlanEntry& record,
                                                int channel,
                                                Window8<kChannels>& w) {
  using Vector = typename Window8<kChannels>::Vector;
  const bool has_carry = record.end_position >= kSlots - 1;
  const int first_pass_slot = kSlots - record.rows_from_pass;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int half = s < kSlots / 2 ? 0 : kDims;
    const bool exists = s >= kSlots / 2 || has_carry;
    const bool in_pass = s >= first_pass_slot || !exists;
    const int back = exists ? kSlots - 1 - s : 0;
    const int32_t base = s < kSlots / 2 ? record.carry_ring_base : record.own_ring_base;
    const int64_t pass_at = (record.end_row - back) * params.row_stride;
    const int64_t ring_at =
        (base + (record.end_position - back) % params.ring_size) * int64_t{4 * kDims};
    const float* values = in_pass ? params.rows + pass_at : params.ring + ring_at;
    const float* scores =
        in_pass ? params.rows + pass_at + 2 * kDims : params.ring + ring_at + 2 * kDims;
    w.values[s] = *reinterpret_cast<const Vector*>(values + half + channel);
    w.scores[s] = *reinterpret_cast<const Vector*>(scores + half + channel);
    w.bias[s] = {};
    if (in_pass && params.ape != nullptr) {
      w.bias[s] = __ldg(reinterpret_cast<const Vector*>(
          params.ape + (s % (kSlots / 2)) * 2 * kDims + half + channel));
    }
  }
}

/// The pooled channels. A window of the first group has no carry rows: score -inf, value 0.
template <int kChannels>
__device__ __forceinline__ void pool_window8(const CompressorPlanEntry& record,
                                             const Window8<kChannels>& w,
                                             float (&pooled)[kChannels]) {
  const bool has_carry = record.end_position >= kSlots - 1;
  const int first_pass_slot = kSlots - record.rows_from_pass;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    float scores[kSlots];
    float values[kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const float score = reinterpret_cast<const float*>(&w.scores[s])[c];
      const float bias = reinterpret_cast<const float*>(&w.bias[s])[c];
      scores[s] = s >= first_pass_slot ? __fadd_rn(score, bias) : score;
      if (s < kSlots / 2 && !has_carry) {
        scores[s] = -__int_as_float(0x7F800000);
      }
      values[s] = reinterpret_cast<const float*>(&w.values[s])[c];
    }
    pooled[c] = pool_window8(scores, values);
  }
}

__device__ __forceinline__ CompressorPlanEntry load_plan(const CompressorPoolParams& params,
                                                         int32_t entry) {
  const auto* record = reinterpret_cast<const int4*>(params.plan + entry);
  const int4 low = record[0];
  const int4 high = record[1];
  return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, 0};
}

/// A pooled row on its way to one warp that finishes it.
struct PooledRow {
  alignas(16) uint16_t values[kKvDims];  // bf16
  alignas(16) float norm_weight[kKvDims];
};

/// One warp: norm, rotation and store of a pooled row in shared memory.
__device__ __forceinline__ void store_pooled_row(const CompressorPoolParams& params,
                                                 const PooledRow& row,
                                                 float2 turn,
                                                 int32_t destination) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto* packed = reinterpret_cast<const uint4*>(row.values + lane * kKvLaneDims);
  float v[kKvLaneDims];
  unpack_bf16(packed[0], v);
  unpack_bf16(packed[1], v + 8);
  finish_kv_entry(v, row.norm_weight, params.eps, turn);
  store_kv_entry(params.kv_pool, destination, v);
}

/// 256 threads: one entry of the main ratio-4 compressor. The norm's weights and the rotation are
/// ready when the pooled channels are.
__device__ __forceinline__ void pool_entry_c4(const CompressorPoolParams& params,
                                              int32_t entry,
                                              PooledRow& row) {
  const int thread = static_cast<int>(threadIdx.x);
  const CompressorPlanEntry record = load_plan(params, entry);
  const int32_t count = entry_count(params);
  const float2 weight = __ldg(reinterpret_cast<const float2*>(params.norm_weight) + thread);
  const float frequency = __ldg(params.frequencies + thread % 32);
  if (entry >= count || record.destination < 0) {
    return;
  }
  Window8<2> window;
  request_window8<kKvDims, 2>(params, record, 2 * thread, window);
  float2 turn = {};
  if (thread < 32) {
    turn = rotation(first_position(record.end_position, 4), frequency);
  }
  reinterpret_cast<float2*>(row.norm_weight)[thread] = weight;
  float pooled[2];
  pool_window8<2>(record, window, pooled);
  if (params.pooled != nullptr) {
    *reinterpret_cast<float2*>(params.pooled + static_cast<int64_t>(entry) * kKvDims + 2 * thread) =
        make_float2(pooled[0], pooled[1]);
  }
  reinterpret_cast<uint32_t*>(row.values)[thread] = ptx::pack_bf16(pooled[0], pooled[1]);
  __syncthreads();
  if (thread < 32) {
    store_pooled_row(params, row, turn, record.destination);
  }
}

/// One warp: one index key.
__device__ __forceinline__ void pool_index_key(const CompressorPoolParams& params,
                                               int32_t entry,
                                               float* norm_weight) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const CompressorPlanEntry record = load_plan(params, entry);
  const int32_t count = entry_count(params);
  const float4 weight = __ldg(reinterpret_cast<const float4*>(params.norm_weight) + lane);
  const float frequency = __ldg(params.frequencies + lane);
  if (entry >= count || record.destination < 0) {
    return;
  }
  Window8<4> window;
  request_window8<kIndexDims, 4>(params, record, 4 * lane, window);
  const float2 turn = rotation(first_position(record.end_position, 4), frequency);
  reinterpret_cast<float4*>(norm_weight)[lane] = weight;  // read back by the same lane
  float v[kIndexLaneDims];
  pool_window8<4>(record, window, v);
  if (params.pooled != nullptr) {
    *reinterpret_cast<float4*>(params.pooled + static_cast<int64_t>(entry) * kIndexDims +
                               4 * lane) = make_float4(v[0], v[1], v[2], v[3]);
  }
#pragma unroll
  for (int i = 0; i < kIndexLaneDims; ++i) {
    v[i] = to_bf16(v[i]);
  }
  finish_index_key(v, norm_weight, params.eps, turn);
  store_index_key_entry(params.index_pool, record.destination, v);
}

struct DenseShared {
  float maxima[kDenseSlots / kDenseRunSlots][kDenseBlockDims];
  float weights[kDenseSlots / kDenseRunSlots][kDenseBlockDims];
  float values[kDenseSlots / kDenseRunSlots][kDenseBlockDims];
  PooledRow row;  // of block 0: the values are filled by all blocks of the cluster
};

/// 256 threads of each of the 8 blocks of a cluster: one entry of a ratio-128 compressor. Block r
/// has channels 64 r ..; warp w has the run of slots 16 w ..; a lane has two channels. All blocks
/// of the cluster call with the same entry; two cluster barriers when the entry exists.
__device__ __forceinline__ void pool_entry_c128(const CompressorPoolParams& params,
                                                int32_t entry,
                                                DenseShared& s) {
  constexpr int kRuns = kDenseSlots / kDenseRunSlots;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const auto rank = static_cast<int>(ptx::cluster_rank());
  const CompressorPlanEntry record = load_plan(params, entry);
  const float2 weight = __ldg(reinterpret_cast<const float2*>(params.norm_weight) + thread);
  const float frequency = __ldg(params.frequencies + lane);
  if (record.destination < 0) {  // the same for the whole cluster
    return;
  }
  const int channel = rank * kDenseBlockDims + 2 * lane;
  const int first_pass_slot = kDenseSlots - record.rows_from_pass;
  // Branch-free addresses: all 32 loads of a lane are in flight together.
  const int32_t first_position_of_run =
      record.end_position - (kDenseSlots - 1) + warp * kDenseRunSlots;
  const int32_t first_ring_row = first_position_of_run % params.ring_size;
  float2 u[kDenseRunSlots];
  float2 z[kDenseRunSlots];
  float2 bias[kDenseRunSlots];
#pragma unroll
  for (int i = 0; i < kDenseRunSlots; ++i) {
    const int slot = warp * kDenseRunSlots + i;
    const bool in_pass = slot >= first_pass_slot;
    const int32_t ring_row =
        first_ring_row + i - (first_ring_row + i >= params.ring_size ? params.ring_size : 0);
    const int64_t pass_at = (record.end_row - (kDenseSlots - 1) + slot) * params.row_stride;
    const int64_t ring_at = (record.own_ring_base + ring_row) * int64_t{2 * kKvDims};
    const float* values = in_pass ? params.rows + pass_at : params.ring + ring_at;
    const float* scores =
        in_pass ? params.rows + pass_at + kKvDims : params.ring + ring_at + kKvDims;
    u[i] = *reinterpret_cast<const float2*>(values + channel);
    z[i] = *reinterpret_cast<const float2*>(scores + channel);
    bias[i] = make_float2(0.0F, 0.0F);
    if (in_pass && params.ape != nullptr) {
      bias[i] = __ldg(reinterpret_cast<const float2*>(params.ape + slot * kKvDims + channel));
    }
  }
  float2 turn = {};
  if (rank == 0 && warp == 0) {
    turn = rotation(first_position(record.end_position, kDenseSlots), frequency);
  }
  reinterpret_cast<float2*>(s.row.norm_weight)[thread] = weight;
#pragma unroll
  for (int i = 0; i < kDenseRunSlots; ++i) {
    if (warp * kDenseRunSlots + i >= first_pass_slot) {
      z[i] = make_float2(__fadd_rn(z[i].x, bias[i].x), __fadd_rn(z[i].y, bias[i].y));
    }
  }
  float2 largest_score = z[0];
#pragma unroll
  for (int i = 1; i < kDenseRunSlots; ++i) {
    largest_score.x = fmaxf(largest_score.x, z[i].x);
    largest_score.y = fmaxf(largest_score.y, z[i].y);
  }
  *reinterpret_cast<float2*>(&s.maxima[warp][2 * lane]) = largest_score;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    const float2 other = *reinterpret_cast<const float2*>(&s.maxima[r][2 * lane]);
    largest_score.x = fmaxf(largest_score.x, other.x);
    largest_score.y = fmaxf(largest_score.y, other.y);
  }
  PoolSum first;
  PoolSum second;
#pragma unroll
  for (int i = 0; i < kDenseRunSlots; ++i) {
    pool_add(first, pool_weight(z[i].x, largest_score.x), u[i].x);
    pool_add(second, pool_weight(z[i].y, largest_score.y), u[i].y);
  }
  *reinterpret_cast<float2*>(&s.weights[warp][2 * lane]) = make_float2(first.weight, second.weight);
  *reinterpret_cast<float2*>(&s.values[warp][2 * lane]) = make_float2(first.value, second.value);
  __syncthreads();
  if (thread < kDenseBlockDims) {
    PoolSum total = {s.weights[0][thread], s.values[0][thread]};
#pragma unroll
    for (int r = 1; r < kRuns; ++r) {
      pool_append(total, {s.weights[r][thread], s.values[r][thread]});
    }
    const float result = pool_result(total);
    const int at = rank * kDenseBlockDims + thread;
    if (params.pooled != nullptr) {
      params.pooled[static_cast<int64_t>(entry) * kKvDims + at] = result;
    }
    *ptx::peer_pointer(&s.row.values[at], 0) = numerics::bf16_from_float(result);
  }
  ptx::cluster_sync();
  if (rank == 0 && warp == 0) {
    store_pooled_row(params, s.row, turn, record.destination);
  }
  ptx::cluster_sync();  // block 0 has read; the next entry may come
}

}  // namespace baleen::kernels
