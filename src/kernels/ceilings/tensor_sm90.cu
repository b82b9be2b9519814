// Tensor rate: warp groups multiply operands that stay in shared memory, so nothing else limits.
#include "device/launch.h"
#include "kernels/ceilings/ceilings.h"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels {
namespace {

constexpr int kBlocks = 132;
constexpr int kGroups = 2;        // warp groups per block, each m64n256
constexpr int kTileA = 64 * 128;  // bytes: 64 rows of one 128-byte K stretch
constexpr int kTileB = 256 * 128;
constexpr int kStretches = 2;  // distinct operand tiles per warp group
constexpr int kSharedBytes = kStretches * (kGroups * kTileA + kTileB) + 1024;

template <class Format>
__global__ void __launch_bounds__(kGroups * 128, 1) tensor_rate(TensorParams params) {
  extern __shared__ uint8_t raw[];
  uint8_t* tiles = raw + (1024 - ptx::shared_address(raw) % 1024) % 1024;
  for (int i = static_cast<int>(threadIdx.x); i < kStretches * (kGroups * kTileA + kTileB) / 16;
       i += static_cast<int>(blockDim.x)) {
    reinterpret_cast<uint4*>(tiles)[i] = reinterpret_cast<const uint4*>(params.operands)[i];
  }
  ptx::fence_async_shared();
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / 128;
  float acc[128] = {};
  for (int step = 0; step < params.products; step += 4) {
    const int stretch = (step / 4) % kStretches;
    const uint64_t a = ptx::k_major_descriptor(tiles + (stretch * kGroups + group) * kTileA);
    const uint64_t b =
        ptx::k_major_descriptor(tiles + kStretches * kGroups * kTileA + stretch * kTileB);
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      ptx::Wgmma<Format, 256>::shared(
          acc, ptx::advance_descriptor(a, 32 * k), ptx::advance_descriptor(b, 32 * k), 1);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
  }
  ptx::wgmma_wait<0>();
  ptx::pin_registers(acc);
  float sum = 0;
#pragma unroll
  for (float value : acc) {
    sum += value;
  }
  if (sum == 1.2345e30F) {
    *params.sink = sum;
  }
}

}  // namespace

void launch_tensor(const TensorParams& params, device::StreamHandle stream) {
  const device::LaunchShape shape{
      .grid = dim3(kBlocks), .block = dim3(kGroups * 128), .shared_bytes = kSharedBytes};
  if (params.fp8) {
    device::launch(stream, shape, tensor_rate<ptx::E4m3>, params);
  } else {
    device::launch(stream, shape, tensor_rate<ptx::Bf16>, params);
  }
}

double tensor_flop(const TensorParams& params) {
  return 2.0 * kBlocks * kGroups * 64 * 256 * (params.fp8 ? 32 : 16) * params.products;
}

}  // namespace baleen::kernels
