#include "base/check.h"
#include "device/launch.h"
#include "kernels/cache_entry/cache_entry.cuh"
#include "kernels/cache_entry/cache_entry.h"

namespace baleen::kernels {
namespace {

constexpr int kWarps = 4;

template <int kCount>
__device__ bool load_row(const float* row, float (&v)[kCount]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(row + lane * kCount + i);
    v[i] = to_bf16(four.x);
    v[i + 1] = to_bf16(four.y);
    v[i + 2] = to_bf16(four.z);
    v[i + 3] = to_bf16(four.w);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    nan = nan || isnan(v[i]);
  }
  return __any_sync(kWholeWarp, nan);
}

__global__ void __launch_bounds__(kWarps * 32) store_kv_rows_kernel(StoreKvRowsParams params) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= params.num_rows || params.slots[row] < 0) {
    return;
  }
  float v[kKvLaneDims];
  const bool nan = load_row(params.rows + row * params.row_stride, v);
  if (nan && lane == 0 && params.nan_rows != nullptr) {
    atomicAdd(params.nan_rows, 1U);
  }
  if (params.norm_weight != nullptr) {
    const float2 turn = rotation(params.positions[row], params.frequencies[lane]);
    finish_kv_entry(v, params.norm_weight, params.eps, turn);
  }
  store_kv_entry(params.pool, params.slots[row], v);
}

__global__ void __launch_bounds__(kWarps * 32)
    store_index_keys_kernel(StoreIndexKeysParams params) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= params.num_rows || params.slots[row] < 0) {
    return;
  }
  float v[kIndexLaneDims];
  const bool nan = load_row(params.rows + row * params.row_stride, v);
  if (nan && lane == 0 && params.nan_rows != nullptr) {
    atomicAdd(params.nan_rows, 1U);
  }
  if (params.norm_weight != nullptr) {
    const float2 turn = rotation(params.positions[row], params.frequencies[lane]);
    finish_index_key(v, params.norm_weight, params.eps, turn);
  }
  store_index_key_entry(params.pool, params.slots[row], v);
}

unsigned blocks(int32_t rows) {
  return static_cast<unsigned>((rows + kWarps - 1) / kWarps);
}

}  // namespace

void store_kv_rows(const StoreKvRowsParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(params.num_rows >= 0 && params.row_stride % 4 == 0,
               "num_rows={} row_stride={}",
               params.num_rows,
               params.row_stride);
  if (params.num_rows == 0) {
    return;
  }
  device::launch(stream,
                 {.grid = dim3(blocks(params.num_rows)), .block = dim3(kWarps * 32)},
                 store_kv_rows_kernel,
                 params);
}

void store_index_keys(const StoreIndexKeysParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(params.num_rows >= 0 && params.row_stride % 4 == 0,
               "num_rows={} row_stride={}",
               params.num_rows,
               params.row_stride);
  if (params.num_rows == 0) {
    return;
  }
  device::launch(stream,
                 {.grid = dim3(blocks(params.num_rows)), .block = dim3(kWarps * 32)},
                 store_index_keys_kernel,
                 params);
}

}  // namespace baleen::kernels
