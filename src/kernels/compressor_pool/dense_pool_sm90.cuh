#pragma once
// Pool of ratio-128 compressors on Hopper for many entries. An entry is 128 rows of 512 values and
// scores, 512 KB. A block walks it in slices of 128 channels; consumer warp w owns run w, the slots
// 16 w .. 16 w + 15: it keeps their scores in registers, the block finds the exact maximum, the
// warp sums its run in slot order, and the runs are added in order. A tail warp finishes and stores
// the entry while the next one is pooled; a producer warp keeps kStages tiles of 8 KB (scores or
// values of a run) in flight, across slices and entries.
//
//   dense_pool_kernel<24><<<blocks, kDenseThreads, dense_shared<24>()>>>(params, rows_map);

#include "device/tensor_map.h"
#include "kernels/compressor_pool/pool_math.cuh"
#include "kernels/compressor_pool/pool_tail.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/tensor_copy.cuh"

namespace baleen::kernels {

inline constexpr int kDenseWindow = 128;
inline constexpr int kDenseRuns = 8;  // one consumer warp each
inline constexpr int kRunSlots = kDenseWindow / kDenseRuns;
inline constexpr int kSliceDims = 128;  // four channels per lane
inline constexpr int kDenseSlices = kKvDims / kSliceDims;
inline constexpr int kUnitFloats = kRunSlots * kSliceDims;   // scores or values of a run, 8 KB
inline constexpr int kDenseThreads = (kDenseRuns + 2) * 32;  // and a tail and a producer warp
inline constexpr int kCombineWarps = kSliceDims / 32;

template <int kStages>
constexpr int dense_shared() {
  const int exchange = 3 * kDenseRuns * kSliceDims * 4;  // maxima and two sums of every run
  const int pooled = 2 * kKvDims * 2;
  return kStages * (kUnitFloats * 4 + 16 + 2 * 8) + exchange + pooled + 4 * 8;
}

/// What consumers must know about the entry of a run.
struct DenseStage {
  int32_t destination;
  int32_t end_position;
  int32_t first_pass_slot;  // slots from here on get the position bias
  int32_t entry;            // place in the plan
};
static_assert(sizeof(DenseStage) == 16);

/// Scores or values of a run. When all rows belong to the pass they are one tile of 16 rows by 128
/// channels; a run that begins in the ring is copied row by row.
__device__ __forceinline__ void produce_dense_unit(const CompressorPoolParams& params,
                                                   const CUtensorMap* rows_map,
                                                   const CompressorPlanEntry& record,
                                                   int32_t entry,
                                                   int slice,
                                                   int run,
                                                   bool is_value,
                                                   float* stage,
                                                   DenseStage* about,
                                                   ptx::Barrier* full) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool stored = record.destination >= 0;
  const int first_pass_slot = kDenseWindow - record.rows_from_pass;
  if (lane == 0) {
    *about = {record.destination, record.end_position, first_pass_slot, entry};
    ptx::barrier_expect_bytes(full, stored ? kUnitFloats * 4 : 0);
  }
  __syncwarp();
  if (!stored) {
    return;
  }
  const int column = (is_value ? 0 : kKvDims) + slice * kSliceDims;
  if (run * kRunSlots >= first_pass_slot) {
    if (lane == 0) {
      const int32_t row = record.end_row - (kDenseWindow - 1) + run * kRunSlots;
      ptx::tensor_load_2d(stage, rows_map, column, row, full, ptx::kEvictFirst);
    }
    return;
  }
  if (lane < kRunSlots) {
    const int slot = run * kRunSlots + lane;
    const int back = kDenseWindow - 1 - slot;
    const float* source;
    if (slot >= first_pass_slot) {
      source = params.rows + static_cast<int64_t>(record.end_row - back) * params.row_stride;
    } else {
      const int32_t row = record.own_ring_base + (record.end_position - back) % params.ring_size;
      source = params.ring + static_cast<int64_t>(row) * (2 * kKvDims);
    }
    ptx::bulk_load(
        stage + lane * kSliceDims, source + column, kSliceDims * 4, full, ptx::kEvictFirst);
  }
}

template <int kStages>
__global__ void __launch_bounds__(kDenseThreads, 1)
    dense_pool_kernel(const __grid_constant__ CompressorPoolParams params,
                      const __grid_constant__ CUtensorMap rows_map) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto* stages = reinterpret_cast<float*>(shared);
  float* maxima = stages + kStages * kUnitFloats;                                    // [runs, 128]
  float* run_weights = maxima + kDenseRuns * kSliceDims;                             // [runs, 128]
  float* run_values = run_weights + kDenseRuns * kSliceDims;                         // [runs, 128]
  auto* pooled = reinterpret_cast<uint16_t*>(run_values + kDenseRuns * kSliceDims);  // [2, 512]
  auto* about = reinterpret_cast<DenseStage*>(pooled + 2 * kKvDims);
  auto* full = reinterpret_cast<ptx::Barrier*>(about + kStages);
  ptx::Barrier* empty = full + kStages;
  ptx::Barrier* pooled_full = empty + kStages;  // [2]
  ptx::Barrier* pooled_free = pooled_full + 2;  // [2]

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&rows_map);
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(&full[i], 1);
      ptx::barrier_init(&empty[i], 1);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(&pooled_full[i], kCombineWarps);
      ptx::barrier_init(&pooled_free[i], 1);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  const auto first = static_cast<int32_t>(blockIdx.x);
  const auto step = static_cast<int32_t>(gridDim.x);
  ptx::wait_for_predecessor();
  const int32_t count = entry_count(params);

  if (warp == kDenseRuns + 1) {  // producer
    int32_t turn = 0;
    for (int32_t entry = first; entry < count; entry += step) {
      const auto* record = reinterpret_cast<const int4*>(params.plan + entry);
      const int4 low = record[0];
      const int4 high = record[1];
      const CompressorPlanEntry plan = {low.x, low.y, low.z, low.w, high.x, high.y, 0, 0};
      for (int slice = 0; slice < kDenseSlices; ++slice) {
        for (int unit = 0; unit < 2 * kDenseRuns; ++unit, ++turn) {
          const int stage = turn % kStages;
          ptx::barrier_wait(&empty[stage], ((turn / kStages) & 1) ^ 1);
          produce_dense_unit(params,
                             &rows_map,
                             plan,
                             entry,
                             slice,
                             unit / 2,
                             unit % 2 != 0,
                             stages + stage * kUnitFloats,
                             &about[stage],
                             &full[stage]);
        }
      }
    }
  } else if (warp == kDenseRuns) {  // tail
    const float frequency = __ldg(params.frequencies + lane);
    int32_t num_stored = 0;
    for (int32_t entry = first; entry < count; entry += step) {
      const CompressorPlanEntry record = params.plan[entry];
      if (record.destination < 0) {
        continue;
      }
      const int buffer = num_stored & 1;
      ptx::barrier_wait(&pooled_full[buffer], (num_stored / 2) & 1);
      store_pooled_kv(
          params, pooled + buffer * kKvDims, frequency, record.end_position, record.destination);
      __syncwarp();
      if (lane == 0) {
        ptx::barrier_arrive(&pooled_free[buffer]);
      }
      ++num_stored;
    }
  } else {
    int32_t turn = 2 * warp;  // of the run's scores; its values follow
    const auto release = [&](int stage) {
      __syncwarp();
      if (lane == 0) {
        ptx::barrier_arrive(&empty[stage]);
      }
    };
    int32_t num_stored = 0;
    for (int32_t entry = first; entry < count; entry += step) {
      const int buffer = num_stored & 1;
      DenseStage here = {};
      for (int slice = 0; slice < kDenseSlices; ++slice, turn += 2 * kDenseRuns) {
        float4 scores[kRunSlots];  // position bias first, then bias + score
#pragma unroll
        for (int i = 0; i < kRunSlots; ++i) {
          scores[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
          if (params.ape != nullptr) {
            const int at = (warp * kRunSlots + i) * kKvDims + slice * kSliceDims + lane * 4;
            scores[i] = __ldg(reinterpret_cast<const float4*>(params.ape + at));
          }
        }
        const int score_stage = turn % kStages;
        const int value_stage = (turn + 1) % kStages;
        ptx::barrier_wait(&full[score_stage], (turn / kStages) & 1);
        here = about[score_stage];
        if (here.destination < 0) {
          release(score_stage);
          ptx::barrier_wait(&full[value_stage], ((turn + 1) / kStages) & 1);
          release(value_stage);
          continue;
        }
        const float* rows = stages + score_stage * kUnitFloats + lane * 4;
        const int first_pass = here.first_pass_slot - warp * kRunSlots;
        float4 largest = {};
#pragma unroll
        for (int i = 0; i < kRunSlots; ++i) {
          const float4 z = *reinterpret_cast<const float4*>(rows + i * kSliceDims);
          if (i >= first_pass) {
            scores[i].x = __fadd_rn(z.x, scores[i].x), scores[i].y = __fadd_rn(z.y, scores[i].y);
            scores[i].z = __fadd_rn(z.z, scores[i].z), scores[i].w = __fadd_rn(z.w, scores[i].w);
          } else {
            scores[i] = z;
          }
          largest.x = i == 0 ? scores[i].x : fmaxf(largest.x, scores[i].x);
          largest.y = i == 0 ? scores[i].y : fmaxf(largest.y, scores[i].y);
          largest.z = i == 0 ? scores[i].z : fmaxf(largest.z, scores[i].z);
          largest.w = i == 0 ? scores[i].w : fmaxf(largest.w, scores[i].w);
        }
        release(score_stage);
        *reinterpret_cast<float4*>(maxima + warp * kSliceDims + lane * 4) = largest;
        ptx::named_barrier_sync(1, kDenseRuns * 32);
#pragma unroll
        for (int r = 0; r < kDenseRuns; ++r) {
          const float4 m = *reinterpret_cast<const float4*>(maxima + r * kSliceDims + lane * 4);
          largest.x = fmaxf(largest.x, m.x), largest.y = fmaxf(largest.y, m.y);
          largest.z = fmaxf(largest.z, m.z), largest.w = fmaxf(largest.w, m.w);
        }
        PoolSum sums[4];
        ptx::barrier_wait(&full[value_stage], ((turn + 1) / kStages) & 1);
        rows = stages + value_stage * kUnitFloats + lane * 4;
#pragma unroll
        for (int i = 0; i < kRunSlots; ++i) {
          const float4 u = *reinterpret_cast<const float4*>(rows + i * kSliceDims);
          pool_add(sums[0], pool_weight(scores[i].x, largest.x), u.x);
          pool_add(sums[1], pool_weight(scores[i].y, largest.y), u.y);
          pool_add(sums[2], pool_weight(scores[i].z, largest.z), u.z);
          pool_add(sums[3], pool_weight(scores[i].w, largest.w), u.w);
        }
        release(value_stage);
        *reinterpret_cast<float4*>(run_weights + warp * kSliceDims + lane * 4) =
            make_float4(sums[0].weight, sums[1].weight, sums[2].weight, sums[3].weight);
        *reinterpret_cast<float4*>(run_values + warp * kSliceDims + lane * 4) =
            make_float4(sums[0].value, sums[1].value, sums[2].value, sums[3].value);
        ptx::named_barrier_sync(1, kDenseRuns * 32);
        if (warp < kCombineWarps) {
          const int channel = warp * 32 + lane;
          PoolSum total = {run_weights[channel], run_values[channel]};
#pragma unroll
          for (int r = 1; r < kDenseRuns; ++r) {
            pool_append(
                total,
                {run_weights[r * kSliceDims + channel], run_values[r * kSliceDims + channel]});
          }
          const float result = pool_result(total);
          const int at = slice * kSliceDims + channel;
          if (params.pooled != nullptr) {
            params.pooled[static_cast<int64_t>(here.entry) * kKvDims + at] = result;
          }
          if (slice == 0 && num_stored >= 2) {
            ptx::barrier_wait(&pooled_free[buffer], ((num_stored / 2) & 1) ^ 1);
          }
          pooled[buffer * kKvDims + at] = numerics::bf16_from_float(result);
        }
      }
      if (here.destination < 0) {
        continue;
      }
      if (warp < kCombineWarps) {
        __syncwarp();
        if (lane == 0) {
          ptx::barrier_arrive(&pooled_full[buffer]);
        }
      }
      ++num_stored;
    }
  }
}

/// Tiles of one run and one slice over the rows of the pass.
inline CUtensorMap dense_rows_map(const CompressorPoolParams& params) {
  return device::make_tensor_map({.base = params.rows,
                                  .element = device::MapElement::kFloat,
                                  .extents = {2 * kKvDims, static_cast<uint64_t>(params.num_rows)},
                                  .strides = {static_cast<uint64_t>(params.row_stride) * 4},
                                  .box = {kSliceDims, kRunSlots}});
}

}  // namespace baleen::kernels
