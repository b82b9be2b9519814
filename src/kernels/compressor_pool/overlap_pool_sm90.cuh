#pragma once
// Pool of ratio-4 compressors on Hopper. The four token rows of a group lie side by side, so a
// producer warp brings a whole group (32 KB at 512 channels) by one bulk copy into a ring of stages
// and runs far ahead; each element is read once: the carry half of a group serves the next entry,
// its own half the own entry. Groups of pool warps take the entries in turn, four channels per
// lane, and hand the pooled row through a small second ring to tail warps, which finish and store
// one entry each: their long chain of dependent steps never holds a stage. A block walks one
// stretch of the plan; where a stretch or a request begins, the carry group gets a stage of its
// own.
//
//   using Shape = OverlapShape<512, 2, 4, 6>;
//   overlap_pool_kernel<Shape><<<blocks, Shape::kThreads, Shape::shared_bytes()>>>(params);

#include "kernels/compressor_pool/pool_math.cuh"
#include "kernels/compressor_pool/pool_tail.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/loaded_arrive.cuh"
#include "kernels/ptx/pdl.cuh"

namespace baleen::kernels {

inline constexpr int kGroupTokens = 4;
inline constexpr int kOverlapSlots = 2 * kGroupTokens;

/// A token's row: [carry value | own value | carry score | own score].
template <int kDims>
inline constexpr int overlap_row_floats = 4 * kDims;
template <int kDims>
inline constexpr int overlap_stage_bytes = kGroupTokens * overlap_row_floats<kDims> * 4;

/// kGroups groups of pool warps, kTails tail warps, kStages groups of tokens in flight.
template <int kDims_, int kGroups_, int kTails_, int kStages_>
struct OverlapShape {
  static constexpr int kDims = kDims_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kTails = kTails_;
  static constexpr int kStages = kStages_;
  static constexpr int kGroupWarps = kDims / 128;
  static constexpr int kPoolWarps = kGroups * kGroupWarps;
  static constexpr int kThreads = (kPoolWarps + kTails + 1) * 32;
  static constexpr int kHandovers = 2 * kTails;  // pooled rows between pool and tail warps
  // A waiter knows a phase by its parity alone: each handover has one tail warp and one pool group.
  static_assert(kHandovers % kTails == 0 && kHandovers % kGroups == 0 && kStages >= 3);
  static constexpr int shared_bytes() {
    return kStages * (overlap_stage_bytes<kDims> + 16 + 2 * 8) +
           kHandovers * (2 * kDims + 8 + 2 * 8) + kGroupTokens * 2 * kDims * 4;
  }
};

/// What consumers must know about a stage.
struct OverlapStage {
  static constexpr uint32_t kFromPass = 0xF;      // one bit per token: needs the position bias
  static constexpr uint32_t kEntry = 1U << 4;     // the stage's own halves end an entry
  static constexpr uint32_t kHasCarry = 1U << 5;  // of the entry: in the stage before
  static constexpr uint32_t kEnd = 1U << 6;       // no stage follows
  uint32_t flags;
  int32_t destination;
  int32_t end_position;
  int32_t entry;  // place in the plan
};
static_assert(sizeof(OverlapStage) == 16);

/// The stage ring as the producer sees it; all lanes hold the same numbers.
template <int kDims, int kStages>
struct OverlapProducer {
  const CompressorPoolParams& params;
  float* stages;
  OverlapStage* about;
  ptx::Barrier* full;
  ptx::Barrier* empty;
  int32_t sequence = 0;

  /// `back`: tokens between the group's last one and the record's end position (0 or 4).
  __device__ __forceinline__ void emit_group(const CompressorPlanEntry& record,
                                             int32_t back,
                                             uint32_t flags,
                                             int32_t entry) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int stage = acquire();
    const int from_pass = min(max(record.rows_from_pass - back, 0), kGroupTokens);
    flags |= OverlapStage::kFromPass & ~(OverlapStage::kFromPass >> from_pass);
    if (lane == 0) {
      about[stage] = {flags, record.destination, record.end_position, entry};
      ptx::barrier_expect_bytes(&full[stage], overlap_stage_bytes<kDims>);
    }
    __syncwarp();
    float* out = stages + stage * (overlap_stage_bytes<kDims> / 4);
    constexpr int kRow = overlap_row_floats<kDims>;
    if (from_pass == kGroupTokens && params.row_stride == kRow) {
      if (lane == 0) {
        const int64_t row = record.end_row - back - (kGroupTokens - 1);
        ptx::bulk_load(out,
                       params.rows + row * kRow,
                       overlap_stage_bytes<kDims>,
                       &full[stage],
                       ptx::kEvictFirst);
      }
      return;
    }
    if (lane < kGroupTokens) {
      const int behind = back + kGroupTokens - 1 - lane;  // tokens before the record's last
      const float* source;
      if (lane >= kGroupTokens - from_pass) {
        source = params.rows + (record.end_row - behind) * params.row_stride;
      } else {
        const int32_t base = back != 0 ? record.carry_ring_base : record.own_ring_base;
        const int32_t row = base + (record.end_position - behind) % params.ring_size;
        source = params.ring + static_cast<int64_t>(row) * kRow;
      }
      ptx::bulk_load(out + lane * kRow, source, kRow * 4, &full[stage], ptx::kEvictFirst);
    }
  }

  __device__ __forceinline__ void emit_end() {
    const int stage = acquire();
    if (threadIdx.x % 32 == 0) {
      about[stage] = {OverlapStage::kEnd, kNoEntry, 0, 0};
      ptx::barrier_arrive(&full[stage]);
    }
  }

 private:
  __device__ __forceinline__ int acquire() {
    const int stage = sequence % kStages;
    ptx::barrier_wait(&empty[stage], ((sequence / kStages) & 1) ^ 1);
    ++sequence;
    return stage;
  }
};

template <int kDims, int kStages>
__device__ __forceinline__ void produce_stretch(OverlapProducer<kDims, kStages>& producer,
                                                int32_t begin,
                                                int32_t end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  CompressorPlanEntry before = {};
  before.destination = kNoEntry;
  for (int32_t base = begin; base < end; base += 32) {
    int4 low = make_int4(0, 0, 0, kNoEntry);
    int4 high = make_int4(0, 0, 0, 0);
    if (base + lane < end) {
      const auto* record = reinterpret_cast<const int4*>(producer.params.plan + base + lane);
      low = record[0];
      high = record[1];
    }
    for (int j = 0; j < 32 && base + j < end; ++j) {
      CompressorPlanEntry record = {};
      record.end_row = __shfl_sync(kWholeWarp, low.x, j);
      record.rows_from_pass = __shfl_sync(kWholeWarp, low.y, j);
      record.end_position = __shfl_sync(kWholeWarp, low.z, j);
      record.destination = __shfl_sync(kWholeWarp, low.w, j);
      record.carry_ring_base = __shfl_sync(kWholeWarp, high.x, j);
      record.own_ring_base = __shfl_sync(kWholeWarp, high.y, j);
      record.request = __shfl_sync(kWholeWarp, high.z, j);
      if (record.destination >= 0) {
        const bool has_carry = record.end_position >= kOverlapSlots - 1;
        const bool follows = before.destination >= 0 && record.request == before.request &&
                             record.end_position == before.end_position + kGroupTokens &&
                             record.end_row == before.end_row + kGroupTokens;
        if (has_carry && !follows) {
          producer.emit_group(record, kGroupTokens, 0, base + j);
        }
        producer.emit_group(
            record, 0, OverlapStage::kEntry | (has_carry ? OverlapStage::kHasCarry : 0), base + j);
      }
      before = record;
    }
  }
}

/// A pooled row on its way to a tail warp.
struct Handover {
  static constexpr int32_t kEnd = -2;  // as destination: no row follows
  int32_t destination;
  int32_t end_position;
};

template <class Shape>
__device__ __forceinline__ void finish_entries(const CompressorPoolParams& params,
                                               const uint16_t* pooled,
                                               const Handover* handovers,
                                               ptx::Barrier* full,
                                               ptx::Barrier* empty,
                                               int tail) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float frequency = __ldg(params.frequencies + lane);
  for (int32_t turn = tail;; turn += Shape::kTails) {
    const int place = turn % Shape::kHandovers;
    ptx::barrier_wait(&full[place], (turn / Shape::kHandovers) & 1);
    const Handover here = handovers[place];
    if (here.destination == Handover::kEnd) {
      return;
    }
    const uint16_t* row = pooled + place * Shape::kDims;
    if constexpr (Shape::kDims == kIndexDims) {
      const uint2 four = *reinterpret_cast<const uint2*>(row + lane * kIndexLaneDims);
      float v[kIndexLaneDims] = {ptx::low_bf16(four.x),
                                 ptx::high_bf16(four.x),
                                 ptx::low_bf16(four.y),
                                 ptx::high_bf16(four.y)};
      store_pooled_index_key(params, v, frequency, here.end_position, here.destination);
    } else {
      store_pooled_kv(params, row, frequency, here.end_position, here.destination);
    }
    __syncwarp();
    if (lane == 0) {
      ptx::barrier_arrive(&empty[place]);
    }
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    overlap_pool_kernel(const __grid_constant__ CompressorPoolParams params) {
  constexpr int kDims = Shape::kDims;
  constexpr int kStages = Shape::kStages;
  constexpr int kStageFloats = overlap_stage_bytes<kDims> / 4;
  constexpr int kRow = overlap_row_floats<kDims>;
  extern __shared__ __align__(128) uint8_t shared[];
  auto* stages = reinterpret_cast<float*>(shared);
  float* bias = stages + kStages * kStageFloats;  // [4, carry | own]
  auto* pooled = reinterpret_cast<uint16_t*>(bias + kGroupTokens * 2 * kDims);
  auto* about = reinterpret_cast<OverlapStage*>(pooled + Shape::kHandovers * kDims);
  auto* handovers = reinterpret_cast<Handover*>(about + kStages);
  auto* full = reinterpret_cast<ptx::Barrier*>(handovers + Shape::kHandovers);
  ptx::Barrier* empty = full + kStages;
  ptx::Barrier* pooled_full = empty + kStages;
  ptx::Barrier* pooled_empty = pooled_full + Shape::kHandovers;

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(&full[i], 1);
      ptx::barrier_init(&empty[i], Shape::kPoolWarps);
    }
    for (int i = 0; i < Shape::kHandovers; ++i) {
      ptx::barrier_init(&pooled_full[i], Shape::kGroupWarps);
      ptx::barrier_init(&pooled_empty[i], 1);
    }
    ptx::fence_barrier_init();
  }
  for (int i = static_cast<int>(threadIdx.x) * 4; i < kGroupTokens * 2 * kDims;
       i += Shape::kThreads * 4) {
    *reinterpret_cast<float4*>(bias + i) =
        params.ape == nullptr ? make_float4(0.0F, 0.0F, 0.0F, 0.0F)
                              : __ldg(reinterpret_cast<const float4*>(params.ape + i));
  }
  __syncthreads();

  if (warp == Shape::kPoolWarps + Shape::kTails) {
    ptx::wait_for_predecessor();
    const int64_t count = entry_count(params);
    const auto begin = static_cast<int32_t>(count * blockIdx.x / gridDim.x);
    const auto end = static_cast<int32_t>(count * (blockIdx.x + 1) / gridDim.x);
    OverlapProducer<kDims, kStages> producer{params, stages, about, full, empty};
    produce_stretch(producer, begin, end);
    producer.emit_end();
    return;
  }
  ptx::wait_for_predecessor();
  if (warp >= Shape::kPoolWarps) {
    finish_entries<Shape>(
        params, pooled, handovers, pooled_full, pooled_empty, warp - Shape::kPoolWarps);
    return;
  }

  const int group = warp / Shape::kGroupWarps;
  const int channel = warp % Shape::kGroupWarps * 128 + lane * 4;
  const bool leads = warp % Shape::kGroupWarps == 0 && lane == 0;
  int32_t entries = 0;
  uint32_t before_flags = 0;
  for (int32_t sequence = 0;; ++sequence) {
    const int stage = sequence % kStages;
    const int before = (sequence + kStages - 1) % kStages;
    ptx::barrier_wait(&full[stage], (sequence / kStages) & 1);
    const OverlapStage here = about[stage];
    if ((here.flags & OverlapStage::kEnd) != 0) {
      break;
    }
    const bool is_entry = (here.flags & OverlapStage::kEntry) != 0;
    const bool mine = is_entry && entries % Shape::kGroups == group;
    const int32_t turn = entries;
    entries += is_entry ? 1 : 0;
    float scores[4][kOverlapSlots];
    float values[4][kOverlapSlots];
    uint32_t loaded = 0;  // a word of every load from the stage before
    if (mine) {
      const bool has_carry = (here.flags & OverlapStage::kHasCarry) != 0;
#pragma unroll
      for (int s = 0; s < kOverlapSlots; ++s) {
        const bool is_carry = s < kGroupTokens;
        const int token = s % kGroupTokens;
        const int half = is_carry ? 0 : kDims;
        const float* row =
            stages + (is_carry ? before : stage) * kStageFloats + token * kRow + half + channel;
        float4 u = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
        const float none = -__int_as_float(0x7F800000);
        float4 z = make_float4(none, none, none, none);
        if (!is_carry || has_carry) {
          u = *reinterpret_cast<const float4*>(row);
          z = *reinterpret_cast<const float4*>(row + 2 * kDims);
          if (is_carry) {
            loaded ^= __float_as_uint(u.x) ^ __float_as_uint(z.x);
          }
          if (((is_carry ? before_flags : here.flags) >> token & 1U) != 0) {
            const float4 b =
                *reinterpret_cast<const float4*>(bias + token * 2 * kDims + half + channel);
            z.x = __fadd_rn(z.x, b.x), z.y = __fadd_rn(z.y, b.y);
            z.z = __fadd_rn(z.z, b.z), z.w = __fadd_rn(z.w, b.w);
          }
        }
        scores[0][s] = z.x, scores[1][s] = z.y, scores[2][s] = z.z, scores[3][s] = z.w;
        values[0][s] = u.x, values[1][s] = u.y, values[2][s] = u.z, values[3][s] = u.w;
      }
    }
    before_flags = here.flags;
    __syncwarp();
    if (lane == 0 && sequence > 0) {  // nobody needs the stage before any more
      ptx::barrier_arrive_loaded(&empty[before], loaded);
    }
    if (!mine) {
      continue;
    }
    float result[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      result[i] = pool_window8(scores[i], values[i]);
    }
    if (params.pooled != nullptr) {
      *reinterpret_cast<float4*>(params.pooled + static_cast<int64_t>(here.entry) * kDims +
                                 channel) = make_float4(result[0], result[1], result[2], result[3]);
    }
    const int place = turn % Shape::kHandovers;
    ptx::barrier_wait(&pooled_empty[place], ((turn / Shape::kHandovers) & 1) ^ 1);
    *reinterpret_cast<uint2*>(pooled + place * kDims + channel) =
        make_uint2(ptx::pack_bf16(result[0], result[1]), ptx::pack_bf16(result[2], result[3]));
    if (leads) {
      handovers[place] = {here.destination, here.end_position};
    }
    __syncwarp();
    if (lane == 0) {
      ptx::barrier_arrive(&pooled_full[place]);
    }
  }
  // One end for every tail warp, from the group whose turn it is.
  for (int32_t turn = entries; turn < entries + Shape::kTails; ++turn) {
    if (turn % Shape::kGroups != group) {
      continue;
    }
    const int place = turn % Shape::kHandovers;
    ptx::barrier_wait(&pooled_empty[place], ((turn / Shape::kHandovers) & 1) ^ 1);
    if (leads) {
      handovers[place] = {Handover::kEnd, 0};
    }
    __syncwarp();
    if (lane == 0) {
      ptx::barrier_arrive(&pooled_full[place]);
    }
  }
}

}  // namespace baleen::kernels
