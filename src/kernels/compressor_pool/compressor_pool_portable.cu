#include "base/check.h"
#include "device/launch.h"
#include "kernels/compressor_pool/compressor_checks.h"
#include "kernels/compressor_pool/pool_math.cuh"
#include "kernels/compressor_pool/pool_tail.cuh"

namespace baleen::kernels {
namespace {

struct SlotRow {
  const float* values;  // null: the slot does not exist
  const float* scores;
  bool needs_bias;
};

/// Where slot `slot` of a window of `kWindow` lies; `half` is the offset of its half of the row.
template <int kWindow>
__device__ SlotRow find_slot(const CompressorPoolParams& params,
                             const CompressorPlanEntry& record,
                             int slot,
                             int half,
                             int width) {
  const int back = kWindow - 1 - slot;
  const int32_t position = record.end_position - back;
  if (position < 0) {
    return {nullptr, nullptr, false};
  }
  if (back < record.rows_from_pass) {
    const int64_t at = static_cast<int64_t>(record.end_row - back) * params.row_stride + half;
    return {params.rows + at, params.rows + at + width, params.ape != nullptr};
  }
  const bool is_carry = kWindow == 8 && slot < 4;
  const int32_t base = is_carry ? record.carry_ring_base : record.own_ring_base;
  const int64_t row = base + position % params.ring_size;
  const float* at = params.ring + row * (2 * width) + half;
  return {at, at + width, false};
}

/// One block per entry, one thread per channel.
template <int kDims, int kWindow>
__global__ void __launch_bounds__(kDims)
    portable_pool_kernel(const __grid_constant__ CompressorPoolParams params) {
  __shared__ __align__(16) uint16_t pooled[kDims];
  const auto entry = static_cast<int32_t>(blockIdx.x);
  if (entry >= entry_count(params)) {
    return;
  }
  const CompressorPlanEntry record = params.plan[entry];
  if (record.destination < 0) {
    return;
  }
  constexpr bool kOverlap = kWindow == 8;
  constexpr int kWidth = kOverlap ? 2 * kDims : kDims;
  constexpr int kRatio = kOverlap ? 4 : kWindow;
  const auto channel = static_cast<int>(threadIdx.x);
  const float none = -__int_as_float(0x7F800000);
  const auto score = [&](int slot) {
    const int half = kOverlap && slot >= 4 ? kDims : 0;
    const SlotRow row = find_slot<kWindow>(params, record, slot, half + channel, kWidth);
    if (row.values == nullptr) {
      return none;
    }
    const float bias =
        row.needs_bias ? params.ape[(slot % kRatio) * kWidth + half + channel] : 0.0F;
    return row.needs_bias ? __fadd_rn(*row.scores, bias) : *row.scores;
  };
  const auto value = [&](int slot) {
    const int half = kOverlap && slot >= 4 ? kDims : 0;
    const SlotRow row = find_slot<kWindow>(params, record, slot, half + channel, kWidth);
    return row.values == nullptr ? 0.0F : *row.values;
  };
  float maximum = score(0);
  for (int slot = 1; slot < kWindow; ++slot) {
    maximum = fmaxf(maximum, score(slot));
  }
  constexpr int kRun = kOverlap ? 8 : 16;
  PoolSum total;
  for (int begin = 0; begin < kWindow; begin += kRun) {
    PoolSum run;
    for (int slot = begin; slot < begin + kRun; ++slot) {
      pool_add(run, pool_weight(score(slot), maximum), value(slot));
    }
    if (begin == 0) {
      total = run;
    } else {
      pool_append(total, run);
    }
  }
  float result = pool_result(total);
  if (params.pooled != nullptr) {
    params.pooled[static_cast<int64_t>(entry) * kDims + channel] = result;
  }
  pooled[channel] = numerics::bf16_from_float(result);
  __syncthreads();
  if (threadIdx.x >= 32) {
    return;
  }
  const auto lane = static_cast<int>(threadIdx.x);
  const float frequency = params.frequencies[lane];
  if constexpr (kDims == kIndexDims) {
    float v[kIndexLaneDims];
    for (int i = 0; i < kIndexLaneDims; ++i) {
      v[i] = numerics::bf16_to_float(pooled[lane * kIndexLaneDims + i]);
    }
    store_pooled_index_key(params, v, frequency, record.end_position, record.destination);
  } else {
    store_pooled_kv(params, pooled, frequency, record.end_position, record.destination);
  }
}

template <int kDims, int kWindow>
void launch_portable(const CompressorPoolParams& params, cudaStream_t stream) {
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(params.max_entries)), .block = dim3(kDims)},
                 portable_pool_kernel<kDims, kWindow>,
                 params);
}

}  // namespace

void compressor_pool_portable(const CompressorPoolParams& params, device::StreamHandle stream) {
  check_compressor_params(params);
  if (params.max_entries == 0) {
    return;
  }
  switch (params.kind) {
    case CompressorKind::kC4:
      launch_portable<kKvDims, 8>(params, stream);
      break;
    case CompressorKind::kIndex:
      launch_portable<kIndexDims, 8>(params, stream);
      break;
    case CompressorKind::kC128:
      launch_portable<kKvDims, 128>(params, stream);
      break;
  }
}

}  // namespace baleen::kernels
