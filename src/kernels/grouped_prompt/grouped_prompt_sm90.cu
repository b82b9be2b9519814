// Tiles of 128 outputs by 128 tokens for Hopper. A persistent block has two consumer warp groups,
// 64 outputs of the tile each, and one producer warp. A ring stage is a block of 128 inputs: the
// weights' codes, which become the register operand, and the tokens' bf16 inputs. Of a sum of two
// leaves the first waits in shared memory, where the codes of the result are gathered afterwards.

#include <algorithm>
#include <cstdint>

#include "device/launch.h"
#include "device/stream.h"
#include "kernels/grouped_prompt/grouped_prompt_task.h"
#include "kernels/linear/linear_layout.h"
#include "kernels/linear/linear_multiply.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/opaque.cuh"
#include "kernels/ptx/ring_place.cuh"
#include "kernels/ptx/ring_roles.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/shared_access.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"
#include "numerics/float8.h"

namespace baleen::kernels::grouped_prompt {
namespace {

constexpr int kConsumers = 2;  // warp groups
constexpr int kConsumerThreads = kConsumers * 128;
constexpr int kThreads = kConsumerThreads + 128;
constexpr int kStages = 3;
constexpr int kXBytes = kTileTokens * 2 * kTileRowBytes;  // two chunks of 64 inputs
constexpr int kWeightBytes = kConsumers * kTileBytes;
constexpr int kValues = kTileTokens / 2;  // accumulators of a lane
constexpr uint32_t kTileBarrier = 1;      // of the consumers

struct alignas(1024) Stage {
  uint8_t x[kXBytes];
  uint8_t weights[kWeightBytes];
};

struct Shared {
  Stage stages[kStages];
  union {
    float first_leaf[kValues][kConsumerThreads];
    uint8_t codes[kTileTokens][kTileOutputs];
  };
  float largest[kConsumers * 4][kTileTokens];  // magnitude of a warp's 16 outputs, by token
  ptx::Barrier full[kStages];
  ptx::Barrier empty[kStages];
};
static_assert(sizeof(Shared) <= 227 * 1024);

using Place = ptx::RingPlace<kStages>;

/// Items: tile of outputs major, tile of tokens minor, so that blocks that run together share
/// weights.
__device__ __forceinline__ void produce(const Task& task, const CUtensorMap& x, Shared& shared) {
  Place place;
  const int32_t num_items = task.output_tiles * task.token_tiles;
  for (auto item = static_cast<int32_t>(blockIdx.x); item < num_items;
       item += static_cast<int32_t>(gridDim.x)) {
    const int32_t output_tile = item / task.token_tiles;
    const int32_t token_tile = item - output_tile * task.token_tiles;
    const int32_t group = output_tile / task.tiles_per_group;
    const int64_t row_bytes = int64_t{task.blocks} * kTileBytes;  // of 64 outputs
    const uint8_t* weights = task.weight + kConsumers * output_tile * row_bytes;
    for (int32_t block = 0; block < task.blocks; ++block) {
      Stage& stage = shared.stages[place.stage];
      ptx::Barrier* full = &shared.full[place.stage];
      ptx::barrier_wait_or_leave(&shared.empty[place.stage], place.parity ^ 1U);
      ptx::barrier_expect_bytes(full, kXBytes + kWeightBytes);
      ptx::tensor_load_3d(
          stage.x, &x, 0, token_tile * kTileTokens, 2 * (group * task.blocks + block), full);
      const uint8_t* from = weights + int64_t{block} * kTileBytes;
      ptx::bulk_load(stage.weights, from, kTileBytes, full);
      ptx::bulk_load(stage.weights + kTileBytes, from + row_bytes, kTileBytes, full);
      place.advance();
    }
  }
}

using linear_body::unpack_codes;

struct Consumer {
  const Task& task;
  Shared& shared;
  int group;   // of the two: outputs of the tile
  int thread;  // within it
  Place place;
  uint4 raw[4];  // codes of the next block
  float acc[kValues];

  __device__ __forceinline__ void load_codes() {
    ptx::barrier_wait_or_leave(&shared.full[place.stage], place.parity);
    const uint32_t codes =
        ptx::shared_address(shared.stages[place.stage].weights) +
        static_cast<uint32_t>(group * kTileBytes + thread / 32 * 2048 + thread % 32 * 16);
#pragma unroll
    for (uint32_t pair = 0; pair < 4; ++pair) {
      raw[pair] = ptx::load_shared_16(codes + pair * 512);
      ptx::keep_in_register(raw[pair].x);
      ptx::keep_in_register(raw[pair].y);
      ptx::keep_in_register(raw[pair].z);
      ptx::keep_in_register(raw[pair].w);
    }
  }

  /// One block of 128 inputs; `ends`: the last of the item, no codes follow.
  __device__ __forceinline__ void multiply_block(float scale, bool ends) {
    uint32_t a[8][4];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      unpack_codes(raw[pair].x, a[2 * pair][0], a[2 * pair][2]);
      unpack_codes(raw[pair].y, a[2 * pair][1], a[2 * pair][3]);
      unpack_codes(raw[pair].z, a[2 * pair + 1][0], a[2 * pair + 1][2]);
      unpack_codes(raw[pair].w, a[2 * pair + 1][1], a[2 * pair + 1][3]);
    }
    const int given = place.stage;
    place.advance();
    // The operand is not safe in its registers while the products run (experts_prompt.md): what
    // comes next is loaded before they are issued.
    if (!ends) {
      load_codes();
    }
    float part[kValues];
    pin(a);
    ptx::pin_registers(part);
    const uint32_t x = __shfl_sync(0xFFFFFFFFU, ptx::shared_address(shared.stages[given].x), 0);
    const uint64_t b = ptx::make_descriptor(x, 16, 1024, ptx::Swizzle::k128);
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k) {
      ptx::Wgmma<ptx::Bf16, kTileTokens>::registers(
          part,
          a[k],
          ptx::advance_descriptor(b, k / 4 * (kTileTokens * kTileRowBytes) + 32 * (k % 4)),
          static_cast<int>(k));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(part);
    pin(a);  // it is read until here
    if (thread % 32 == 0) {
      ptx::barrier_arrive(&shared.empty[given]);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      acc[i] = fmaf(part[i], scale, acc[i]);
    }
  }

  static __device__ __forceinline__ void pin(uint32_t (&a)[8][4]) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        ptx::keep_in_register(a[k][r]);
      }
    }
  }

  __device__ __forceinline__ void multiply(int32_t output_tile) {
    const uint8_t* scales = task.weight_scales + int64_t{output_tile} * task.blocks;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      acc[i] = 0.0F;
    }
    load_codes();
    uint8_t scale = __ldg(scales);
#pragma unroll 1
    for (int32_t block = 0; block < task.blocks; ++block) {
      const bool ends = block + 1 == task.blocks;
      const uint8_t coming = ends ? scale : __ldg(scales + block + 1);
      multiply_block(numerics::ue8m0_to_float(scale), ends);
      scale = coming;
      if (block + 1 == task.leaf_blocks && !ends) {
        keep_leaf();
      }
    }
    if (task.leaf_blocks < task.blocks) {
      add_first_leaf();
    }
  }

  __device__ __forceinline__ float* leaf_place() const {
    return &shared.first_leaf[0][group * 128 + thread];
  }
  __device__ __forceinline__ void keep_leaf() {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      leaf_place()[i * kConsumerThreads] = acc[i];
      acc[i] = 0.0F;
    }
  }
  __device__ __forceinline__ void add_first_leaf() {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      acc[i] = leaf_place()[i * kConsumerThreads] + acc[i];
    }
  }

  /// Rounds to bf16 and quantises the tile: one scale per token for its 128 outputs. Value i of a
  /// lane: output 16 * warp + lane / 4 + 8 * (i / 2 % 2), token 8 * (i / 4) + 2 * (lane % 4) + i %
  /// 2.
  __device__ __forceinline__ void store(int32_t output_tile, int32_t token_tile) {
    const int lane = thread % 32;
    const int warp = group * 4 + thread / 32;
#pragma unroll
    for (int j = 0; j < kValues / 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& upper = acc[4 * j + c];
        float& lower = acc[4 * j + 2 + c];
        upper = numerics::round_to_bf16(upper);
        lower = numerics::round_to_bf16(lower);
        float most = fmaxf(fabsf(upper), fabsf(lower));
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFU, most, distance));
        }
        if (lane < 4) {
          shared.largest[warp][8 * j + 2 * lane + c] = most;
        }
      }
    }
    // The magnitudes are there, and every first leaf has been read.
    ptx::named_barrier_sync(kTileBarrier, kConsumerThreads);
#pragma unroll
    for (int j = 0; j < kValues / 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = 8 * j + 2 * (lane % 4) + c;
        const float inverse = 1.0F / scale_of(token);  // exact: a power of two
        const int output = 16 * warp + lane / 4;
        shared.codes[token][output] = numerics::e4m3_from_float(acc[4 * j + c] * inverse);
        shared.codes[token][output + 8] = numerics::e4m3_from_float(acc[4 * j + 2 + c] * inverse);
      }
    }
    ptx::named_barrier_sync(kTileBarrier, kConsumerThreads);
    const int32_t first = token_tile * kTileTokens;
    const int64_t width = int64_t{task.output_tiles} * kTileOutputs;
    const int all = group * 128 + thread;
    constexpr int kChunks = kTileOutputs / 16;
#pragma unroll
    for (int i = all; i < kTileTokens * kChunks; i += kConsumerThreads) {
      const int token = i / kChunks;
      const int at = i % kChunks * 16;
      if (first + token < task.num_tokens) {
        *reinterpret_cast<uint4*>(task.y + (first + token) * width +
                                  int64_t{output_tile} * kTileOutputs + at) =
            *reinterpret_cast<const uint4*>(&shared.codes[token][at]);
      }
    }
    if (all < kTileTokens && first + all < task.num_tokens) {
      task.y_scales[int64_t{first + all} * task.output_tiles + output_tile] =
          numerics::ue8m0_from_pow2(scale_of(all));
    }
    // Who comes next writes the magnitudes and first leaves of its tile.
    ptx::named_barrier_sync(kTileBarrier, kConsumerThreads);
  }

  __device__ __forceinline__ float scale_of(int token) const {
    float most = shared.largest[0][token];
#pragma unroll
    for (int warp = 1; warp < kConsumers * 4; ++warp) {
      most = fmaxf(most, shared.largest[warp][token]);
    }
    return numerics::pow2up((most > 1e-4F ? most : 1e-4F) * numerics::kInverse448);
  }
};

__device__ __forceinline__ void consume(const Task& task, Shared& shared, int group) {
  Consumer consumer{task, shared, group, static_cast<int>(threadIdx.x) % 128, {}, {}, {}};
  const int32_t num_items = task.output_tiles * task.token_tiles;
#pragma unroll 1
  for (auto item = static_cast<int32_t>(blockIdx.x); item < num_items;
       item += static_cast<int32_t>(gridDim.x)) {
    const int32_t output_tile = item / task.token_tiles;
    consumer.multiply(output_tile);
    consumer.store(output_tile, item - output_tile * task.token_tiles);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    grouped_prompt_kernel(const __grid_constant__ Task task,
                          const __grid_constant__ CUtensorMap x) {
  Shared& shared = ptx::dynamic_shared<Shared>();
  ptx::run_ring_roles<kConsumers, 40, 232>(
      shared, [&] { produce(task, x, shared); }, [&](int group) { consume(task, shared, group); });
}

}  // namespace

void start(const Task& task, const CUtensorMap& x, device::StreamHandle stream) {
  const int32_t blocks =
      std::min(task.output_tiles * task.token_tiles, device::multiprocessor_count());
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(kThreads),
                  .shared_bytes = sizeof(Shared)},
                 grouped_prompt_kernel,
                 task,
                 x);
}

}  // namespace baleen::kernels::grouped_prompt
