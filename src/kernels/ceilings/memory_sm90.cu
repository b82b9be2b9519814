// Memory streams: read, read with run-ahead, copy, and the gather of random cache rows.
#include <algorithm>

#include "device/launch.h"
#include "kernels/ceilings/ceilings.h"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/read_only_load.cuh"

namespace baleen::kernels {
namespace {

constexpr int kUnroll = 8;

__global__ void __launch_bounds__(512) read_stream(ReadStreamParams params) {
  if (params.run_ahead) {
    ptx::release_successor();
  }
  const auto* source = static_cast<const uint4*>(params.source);
  const int64_t vectors = params.bytes / 16;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t sum = 0;
  int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; index + (kUnroll - 1) * step < vectors; index += kUnroll * step) {
    uint4 values[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      values[i] = ptx::load_static_16(source + index + i * step);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      sum += values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
    }
  }
  for (; index < vectors; index += step) {
    const uint4 value = ptx::load_static_16(source + index);
    sum += value.x ^ value.y ^ value.z ^ value.w;
  }
  if (params.run_ahead) {
    ptx::wait_for_predecessor();
  }
  if (sum == 0x12345678U) {  // practically never: keeps the loads alive without a store
    *params.sink = sum;
  }
}

__global__ void __launch_bounds__(512) copy_stream(CopyStreamParams params) {
  const auto* source = static_cast<const uint4*>(params.source);
  auto* target = static_cast<uint4*>(params.target);
  const int64_t vectors = params.bytes / 16;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; index + 3 * step < vectors; index += 4 * step) {
    uint4 values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = ptx::load_static_16(source + index + i * step);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      target[index + i * step] = values[i];
    }
  }
  for (; index < vectors; index += step) {
    target[index] = ptx::load_static_16(source + index);
  }
}

constexpr int kRowVectors = 36;  // 576 bytes of values
constexpr int kPageRows = 64;
constexpr int64_t kPageBytes = 37440;

/// One warp per row at a time, four rows in flight: 16-byte loads of the values, 8 bytes of scales.
__global__ void __launch_bounds__(256) row_gather(GatherParams params) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.x / 32;
  uint32_t sum = 0;
  int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  for (; row < params.num_rows; row += 4 * warps) {
    uint4 values[4];
    uint4 tails[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at = row + i * warps;
      if (at < params.num_rows) {
        const int32_t entry = params.rows[at];
        const uint8_t* page = params.pool + (entry / kPageRows) * kPageBytes;
        const uint8_t* value = page + (entry % kPageRows) * 576;
        values[i] = ptx::load_static_16(reinterpret_cast<const uint4*>(value) + lane);
        if (lane < kRowVectors - 32) {
          tails[i] = ptx::load_static_16(reinterpret_cast<const uint4*>(value) + 32 + lane);
        } else if (lane == 31) {
          const uint8_t* scales = page + 576 * kPageRows + (entry % kPageRows) * 8;
          tails[i].x = *reinterpret_cast<const uint32_t*>(scales);
        }
      } else {
        values[i] = make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum += values[i].x ^ values[i].y ^ values[i].z ^ values[i].w ^ tails[i].x ^ tails[i].w;
    }
  }
  if (sum == 0x12345678U) {
    *params.sink = sum;
  }
}

}  // namespace

void launch_read_stream(const ReadStreamParams& params, device::StreamHandle stream) {
  if (params.bytes == 0) {
    return;
  }
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(params.blocks)),
                  .block = dim3(static_cast<unsigned>(params.threads)),
                  .programmatic = params.run_ahead},
                 read_stream,
                 params);
}

void launch_copy_stream(const CopyStreamParams& params, device::StreamHandle stream) {
  if (params.bytes == 0) {
    return;
  }
  device::launch(stream, {.grid = dim3(132 * 4), .block = dim3(512)}, copy_stream, params);
}

void launch_row_gather(const GatherParams& params, device::StreamHandle stream) {
  if (params.num_rows == 0) {
    return;
  }
  device::launch(stream, {.grid = dim3(132 * 8), .block = dim3(256)}, row_gather, params);
}

}  // namespace baleen::kernels
