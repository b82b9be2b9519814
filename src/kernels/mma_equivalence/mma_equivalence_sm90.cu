// One block of one warp group per output tile; operands pass through one shared tile of 128 bytes
// of K.
#include "base/check.h"
#include "device/launch.h"
#include "kernels/mma_equivalence/mma_equivalence.h"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kStretchBytes = 128;

/// Rows of 128 bytes into the swizzled layout.
__device__ void load_tile(uint8_t* tile, const uint8_t* source, int rows, int64_t row_bytes) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * 8; i += kThreads) {
    const uint32_t row = static_cast<uint32_t>(i / 8);
    const uint32_t chunk = static_cast<uint32_t>(i % 8);
    *reinterpret_cast<uint4*>(tile + ptx::swizzled_128(row, chunk * 16)) =
        *reinterpret_cast<const uint4*>(source + row * row_bytes + chunk * 16);
  }
}

template <class Format, int N>
__global__ void __launch_bounds__(kThreads, 1) mma_probe(MmaProbeParams params) {
  constexpr int kElementBytes = sizeof(Format) == 1 ? 1 : 2;
  constexpr int kGroup = 32 / kElementBytes;
  extern __shared__ uint8_t raw[];
  uint8_t* tile_a = raw + (1024 - ptx::shared_address(raw) % 1024) % 1024;
  uint8_t* tile_b = tile_a + 64 * kStretchBytes;
  const bool weights_are_a = params.order == MmaOrder::kWeightsAsA;
  const int64_t row_bytes = static_cast<int64_t>(params.k) * kElementBytes;
  const int first_a = static_cast<int>(blockIdx.x) * 64;
  const int first_b = static_cast<int>(blockIdx.y) * N;
  const uint8_t* a = (weights_are_a ? params.weights : params.tokens) + first_a * row_bytes;
  const uint8_t* b = (weights_are_a ? params.tokens : params.weights) + first_b * row_bytes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  const auto place = [&](int i) -> int64_t {
    const int64_t in_a = first_a + row + 8 * ((i / 2) % 2);
    const int64_t in_b = first_b + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    return weights_are_a ? in_a * params.num_tokens + in_b : in_b * params.num_tokens + in_a;
  };
  float total[N / 2];
  float part[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    total[i] = params.start[place(i)];
    part[i] = params.promote_every == 0 ? total[i] : 0;
  }
  for (int64_t at = 0; at < row_bytes; at += kStretchBytes) {
    __syncthreads();
    load_tile(tile_a, a + at, 64, row_bytes);
    load_tile(tile_b, b + at, N, row_bytes);
    ptx::fence_async_shared();
    __syncthreads();
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      const int k_begin = static_cast<int>(at) / kElementBytes + group * kGroup;
      const bool fresh = params.promote_every != 0 && k_begin % params.promote_every == 0;
      const uint64_t b_tile = ptx::advance_descriptor(ptx::k_major_descriptor(tile_b), 32 * group);
      if (params.source == MmaSource::kShared) {
        const uint64_t a_tile =
            ptx::advance_descriptor(ptx::k_major_descriptor(tile_a), 32 * group);
        ptx::wgmma_fence();
        ptx::Wgmma<typename Format::Type, N>::shared(part, a_tile, b_tile, fresh ? 0 : 1);
      } else {
        uint32_t fragment[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t byte = at + 32 * group + 16 * (i / 2) + 4 * (lane % 4);
          fragment[i] =
              *reinterpret_cast<const uint32_t*>(a + (row + 8 * (i % 2)) * row_bytes + byte);
        }
        ptx::wgmma_fence();
        ptx::Wgmma<typename Format::Type, N>::registers(part, fragment, b_tile, fresh ? 0 : 1);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin_registers(part);
      if (params.promote_every != 0 && (k_begin + kGroup) % params.promote_every == 0) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
          total[i] = __fadd_rn(total[i], part[i]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    params.out[place(i)] = params.promote_every == 0 ? part[i] : total[i];
  }
}

struct Bf16Probe {
  using Type = ptx::Bf16;
  uint16_t element;
};
struct E4m3Probe {
  using Type = ptx::E4m3;
  uint8_t element;
};

template <class Format, int N>
void launch_columns(const MmaProbeParams& params, cudaStream_t stream) {
  const int in_a = params.order == MmaOrder::kWeightsAsA ? params.rows : params.num_tokens;
  const int in_b = params.order == MmaOrder::kWeightsAsA ? params.num_tokens : params.rows;
  BALEEN_CHECK(in_a % 64 == 0 && in_b % N == 0 && params.k % 128 == 0,
               "rows={} tokens={} k={} columns={}",
               params.rows,
               params.num_tokens,
               params.k,
               N);
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(in_a / 64), static_cast<unsigned>(in_b / N)),
                  .block = dim3(kThreads),
                  .shared_bytes = (64 + N) * kStretchBytes + 1024},
                 mma_probe<Format, N>,
                 params);
}

template <class Format>
void launch_format(const MmaProbeParams& params, cudaStream_t stream) {
  switch (params.columns) {
    case 8:
      return launch_columns<Format, 8>(params, stream);
    case 16:
      return launch_columns<Format, 16>(params, stream);
    case 24:
      return launch_columns<Format, 24>(params, stream);
    case 64:
      return launch_columns<Format, 64>(params, stream);
    case 128:
      return launch_columns<Format, 128>(params, stream);
    case 256:
      return launch_columns<Format, 256>(params, stream);
    default:
      BALEEN_CHECK(false, "columns={}", params.columns);
  }
}

}  // namespace

void launch_mma_probe(const MmaProbeParams& params, device::StreamHandle stream) {
  if (params.format == MmaFormat::kBf16) {
    launch_format<Bf16Probe>(params, stream);
  } else {
    launch_format<E4m3Probe>(params, stream);
  }
}

}  // namespace baleen::kernels
