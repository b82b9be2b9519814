#pragma once
// Pool of ratio-4 compressors on Hopper. The four token rows of a group lie side by side, so a
// producer warp brings a whole group (32 KB at 512 channels) by one bulk copy into a ring of stages
// and runs far ahead; each element is read once: the carry half of a group serves the next entry,
// its own half the own entry. Groups of consumer warps take the entries in turn, pool four channels
// per lane, and one warp of the group finishes and stores the entry while the others go on. A block
// walks one stretch of the plan; where a stretch or a request begins, the carry group gets a stage
// of its own.
//
//   overlap_pool_kernel<512, 3, 6><<<blocks, overlap_threads<512, 3>, overlap_shared<512, 3,
//   6>()>>>(p);

#include "kernels/compressor_pool/pool_math.cuh"
#include "kernels/compressor_pool/pool_tail.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/pdl.cuh"

namespace baleen::kernels {

inline constexpr int kGroupTokens = 4;
inline constexpr int kOverlapSlots = 2 * kGroupTokens;

template <int kDims>
inline constexpr int overlap_group_warps = kDims / 128;
template <int kDims, int kGroups>
inline constexpr int overlap_threads = (kGroups * overlap_group_warps<kDims> + 1) * 32;
/// A token's row: [carry value | own value | carry score | own score].
template <int kDims>
inline constexpr int overlap_row_floats = 4 * kDims;
template <int kDims>
inline constexpr int overlap_stage_bytes = kGroupTokens * overlap_row_floats<kDims> * 4;

template <int kDims, int kGroups, int kStages>
constexpr int overlap_shared() {
  const int pooled = kDims == kKvDims ? kGroups * 2 * kDims * 2 : 0;
  return kStages * (overlap_stage_bytes<kDims> + 16 + 2 * 8) + pooled;
}

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
  producer.emit_end();
}

template <int kDims, int kGroups, int kStages>
__global__ void __launch_bounds__(overlap_threads<kDims, kGroups>, 1)
    overlap_pool_kernel(const __grid_constant__ CompressorPoolParams params) {
  static_assert(kStages >= 3);
  constexpr int kGroupWarps = overlap_group_warps<kDims>;
  constexpr int kConsumers = kGroups * kGroupWarps;
  constexpr int kStageFloats = overlap_stage_bytes<kDims> / 4;
  constexpr int kRow = overlap_row_floats<kDims>;
  extern __shared__ __align__(128) uint8_t shared[];
  auto* stages = reinterpret_cast<float*>(shared);
  auto* pooled = reinterpret_cast<uint16_t*>(stages + kStages * kStageFloats);
  auto* about =
      reinterpret_cast<OverlapStage*>(pooled + (kDims == kKvDims ? kGroups * 2 * kDims : 0));
  auto* full = reinterpret_cast<ptx::Barrier*>(about + kStages);
  ptx::Barrier* empty = full + kStages;

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(&full[i], 1);
      ptx::barrier_init(&empty[i], kConsumers);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (warp == kConsumers) {
    ptx::wait_for_predecessor();
    const int64_t count = entry_count(params);
    const auto begin = static_cast<int32_t>(count * blockIdx.x / gridDim.x);
    const auto end = static_cast<int32_t>(count * (blockIdx.x + 1) / gridDim.x);
    OverlapProducer<kDims, kStages> producer{params, stages, about, full, empty};
    produce_stretch(producer, begin, end);
    return;
  }

  const int group = warp / kGroupWarps;
  const int member = warp % kGroupWarps;
  const int channel = member * 128 + lane * 4;
  float bias[kOverlapSlots][4] = {};
  if (params.ape != nullptr) {  // [4, carry | own]
#pragma unroll
    for (int s = 0; s < kOverlapSlots; ++s) {
      const int at = (s % kGroupTokens) * 2 * kDims + (s < kGroupTokens ? 0 : kDims) + channel;
      const float4 four = __ldg(reinterpret_cast<const float4*>(params.ape + at));
      bias[s][0] = four.x, bias[s][1] = four.y, bias[s][2] = four.z, bias[s][3] = four.w;
    }
  }
  const float frequency = __ldg(params.frequencies + lane);
  ptx::wait_for_predecessor();
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
    bool mine = false;
    int32_t own_turn = 0;
    if ((here.flags & OverlapStage::kEntry) != 0) {
      mine = entries % kGroups == group;
      own_turn = entries / kGroups;
      ++entries;
    }
    float scores[4][kOverlapSlots];
    float values[4][kOverlapSlots];
    if (mine) {
      const bool has_carry = (here.flags & OverlapStage::kHasCarry) != 0;
#pragma unroll
      for (int s = 0; s < kOverlapSlots; ++s) {
        const bool is_carry = s < kGroupTokens;
        const int token = s % kGroupTokens;
        const float* row = stages + (is_carry ? before : stage) * kStageFloats + token * kRow +
                           (is_carry ? 0 : kDims) + channel;
        float4 u = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
        const float none = -__int_as_float(0x7F800000);
        float4 z = make_float4(none, none, none, none);
        if (!is_carry || has_carry) {
          u = *reinterpret_cast<const float4*>(row);
          z = *reinterpret_cast<const float4*>(row + 2 * kDims);
          if (((is_carry ? before_flags : here.flags) >> token & 1U) != 0) {
            z.x = __fadd_rn(z.x, bias[s][0]), z.y = __fadd_rn(z.y, bias[s][1]);
            z.z = __fadd_rn(z.z, bias[s][2]), z.w = __fadd_rn(z.w, bias[s][3]);
          }
        }
        scores[0][s] = z.x, scores[1][s] = z.y, scores[2][s] = z.z, scores[3][s] = z.w;
        values[0][s] = u.x, values[1][s] = u.y, values[2][s] = u.z, values[3][s] = u.w;
      }
    }
    before_flags = here.flags;
    __syncwarp();
    if (lane == 0 && sequence > 0) {  // nobody needs the stage before any more
      ptx::barrier_arrive(&empty[before]);
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
    if constexpr (kDims == kIndexDims) {
      store_pooled_index_key(params, result, frequency, here.end_position, here.destination);
    } else {
      uint16_t* row = pooled + (group * 2 + (own_turn & 1)) * kDims;
      *reinterpret_cast<uint2*>(row + channel) =
          make_uint2(ptx::pack_bf16(result[0], result[1]), ptx::pack_bf16(result[2], result[3]));
      ptx::named_barrier_sync(1 + static_cast<uint32_t>(group), kGroupWarps * 32);
      if (own_turn % kGroupWarps == member) {
        store_pooled_kv(params, row, frequency, here.end_position, here.destination);
      }
    }
  }
}

}  // namespace baleen::kernels
