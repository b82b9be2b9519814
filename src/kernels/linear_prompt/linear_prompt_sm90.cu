// Tiles of 128 tokens by 128 outputs for Hopper. A persistent block has two consumer warp groups,
// 64 tokens of the tile each, and one producer warp. Tokens are the 64-row side of the tensor
// instruction and weights its column side: which side is which changes no bit (mma_equivalence). A
// ring stage is a block of 128 inputs of the tile's tokens and weights. The products of one block
// run while the block before is scaled and added. Of a sum of two leaves the first waits in shared
// memory.

#include <algorithm>
#include <cstdint>

#include "device/launch.h"
#include "device/stream.h"
#include "kernels/linear/linear_layout.h"
#include "kernels/linear_prompt/linear_prompt_task.h"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/ring_place.cuh"
#include "kernels/ptx/ring_roles.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "numerics/float8.h"

namespace baleen::kernels::linear_prompt {
namespace {

constexpr int kConsumers = 2;  // warp groups
constexpr int kThreads = (kConsumers + 1) * 128;
constexpr int kStages = 5;
constexpr int kXBytes = kTileTokens * kTileRowBytes;
constexpr int kWeightBytes = kTileOutputs * kTileRowBytes;
constexpr int kValues = kTileOutputs / 2;  // accumulators of a lane
constexpr int kUpperTokens = kTileTokens / kConsumers;
constexpr int kBlocksAtOnce = 4;  // whose scales are read as one word

struct alignas(1024) Stage {
  uint8_t x[kXBytes];
  uint8_t weights[kWeightBytes];
};

struct Shared {
  Stage stages[kStages];
  float first_leaf[kValues][kConsumers * 128];
  ptx::Barrier full[kStages];
  ptx::Barrier empty[kStages];
};
static_assert(sizeof(Shared) <= 227 * 1024);

using Place = ptx::RingPlace<kStages>;

struct Item {
  int task;
  int32_t output_tile;
  int32_t token_tile;
};

/// Tokens first: blocks that run together share weights.
__device__ __forceinline__ Item item_of(const Params& params, int32_t index) {
  Item item{0, 0, 0};
  while (item.task + 1 < params.num_tasks && index >= params.tasks[item.task + 1].item_begin) {
    ++item.task;
  }
  const int32_t within = index - params.tasks[item.task].item_begin;
  item.output_tile = within / params.token_tiles;
  item.token_tile = within - item.output_tile * params.token_tiles;
  return item;
}

/// One lane copies the stages of all items of this block.
__device__ __forceinline__ void produce(const Params& params, const Maps& maps, Shared& shared) {
  Place place;
  for (auto index = static_cast<int32_t>(blockIdx.x); index < params.num_items;
       index += static_cast<int32_t>(gridDim.x)) {
    const Item item = item_of(params, index);
    const Task& task = params.tasks[item.task];
    const int64_t row_bytes = int64_t{task.blocks} * kTileBytes;  // of 64 outputs
    const uint8_t* weights = task.weight + 2 * item.output_tile * row_bytes;
    for (int32_t block = 0; block < task.blocks; ++block) {
      Stage& stage = shared.stages[place.stage];
      ptx::Barrier* full = &shared.full[place.stage];
      ptx::barrier_wait_or_leave(&shared.empty[place.stage], place.parity ^ 1U);
      ptx::barrier_expect_bytes(full, kXBytes + kWeightBytes);
      ptx::tensor_load_2d(
          stage.x, &maps.x[item.task], block * kTileRowBytes, item.token_tile * kTileTokens, full);
      const uint8_t* from = weights + int64_t{block} * kTileBytes;
      ptx::bulk_load(stage.weights, from, kTileBytes, full);
      ptx::bulk_load(stage.weights + kTileBytes, from + row_bytes, kTileBytes, full);
      place.advance();
    }
  }
}

/// Scales of four blocks of inputs, as stored: of a lane's two tokens, and of the weights.
struct ScaleWords {
  uint32_t upper;
  uint32_t lower;
  uint32_t weight;
};

__device__ __forceinline__ float scale_at(uint32_t words, int block) {
  return numerics::ue8m0_to_float(static_cast<uint8_t>(words >> (8 * block)));
}

struct Consumer {
  const Params& params;
  Shared& shared;
  int group;   // of the two: tokens of the tile
  int thread;  // within it
  Place next;  // stage whose products are started next
  Place open;  // stage whose products are waited for next
  float acc[kValues];

  /// The products of one block, into a fresh sum.
  __device__ __forceinline__ void start(float (&part)[kValues]) {
    ptx::barrier_wait_or_leave(&shared.full[next.stage], next.parity);
    const Stage& stage = shared.stages[next.stage];
    const uint32_t x = __shfl_sync(
        0xFFFFFFFFU, ptx::shared_address(stage.x + group * kUpperTokens * kTileRowBytes), 0);
    const uint32_t weights = __shfl_sync(0xFFFFFFFFU, ptx::shared_address(stage.weights), 0);
    const uint64_t a = ptx::make_descriptor(x, 16, 1024, ptx::Swizzle::k128);
    const uint64_t b = ptx::make_descriptor(weights, 16, 1024, ptx::Swizzle::k128);
    ptx::pin_registers(part);
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      ptx::Wgmma<ptx::E4m3, kTileOutputs>::shared(part,
                                                  ptx::advance_descriptor(a, 32 * k),
                                                  ptx::advance_descriptor(b, 32 * k),
                                                  static_cast<int>(k));
    }
    ptx::wgmma_commit();
    next.advance();
  }

  /// Behind a wait for the products of `part`: gives their stage back and adds them.
  __device__ __forceinline__ void add(float (&part)[kValues], const ScaleWords& scales, int block) {
    ptx::pin_registers(part);
    if (thread % 32 == 0) {
      ptx::barrier_arrive(&shared.empty[open.stage]);
    }
    open.advance();
    const float weight = scale_at(scales.weight, block);
    // Powers of two: the product is exact, adding the scaled sum rounds once.
    const float upper = weight * scale_at(scales.upper, block);
    const float lower = weight * scale_at(scales.lower, block);
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      acc[i] = fmaf(part[i], i % 4 < 2 ? upper : lower, acc[i]);
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      acc[i] = 0.0F;
    }
  }

  __device__ __forceinline__ ScaleWords read_scales(const uint8_t* upper,
                                                    const uint8_t* lower,
                                                    const uint8_t* weight,
                                                    int32_t block) const {
    const auto word = [block](const uint8_t* row) {
      return __ldg(reinterpret_cast<const uint32_t*>(row + block));
    };
    return {word(upper), word(lower), word(weight)};
  }

  /// The first of four blocks has been started; the last one is when this returns.
  __device__ __forceinline__ void add_three(float (&even)[kValues],
                                            float (&odd)[kValues],
                                            const ScaleWords& scales) {
    start(odd);
    ptx::wgmma_wait<1>();
    add(even, scales, 0);
    start(even);
    ptx::wgmma_wait<1>();
    add(odd, scales, 1);
    start(odd);
    ptx::wgmma_wait<1>();
    add(even, scales, 2);
  }

  __device__ __forceinline__ void multiply(const Item& item) {
    const Task& task = params.tasks[item.task];
    const int32_t row =
        item.token_tile * kTileTokens + group * kUpperTokens + thread / 32 * 16 + thread % 32 / 4;
    const int32_t last = params.num_tokens - 1;  // rows behind it compute what nobody stores
    const uint8_t* upper = task.x_scales + min(row, last) * task.x_scale_stride;
    const uint8_t* lower = task.x_scales + min(row + 8, last) * task.x_scale_stride;
    const uint8_t* weight = task.weight_scales + int64_t{item.output_tile} * task.blocks;
    float even[kValues];
    float odd[kValues];
    clear();
    ScaleWords scales = read_scales(upper, lower, weight, 0);
    start(even);
    // The last four blocks stand behind the loop: a wait for all products inside it would be taken
    // for one of every round.
#pragma unroll 1
    for (int32_t block = kBlocksAtOnce; block < task.blocks; block += kBlocksAtOnce) {
      const ScaleWords coming = read_scales(upper, lower, weight, block);
      add_three(even, odd, scales);
      start(even);
      ptx::wgmma_wait<1>();
      add(odd, scales, 3);
      scales = coming;
      if (block == task.leaf_blocks) {
        keep_leaf();
      }
    }
    add_three(even, odd, scales);
    ptx::wgmma_wait<0>();
    add(odd, scales, 3);
    if (task.leaf_blocks < task.blocks) {
      add_first_leaf();
    }
  }

  __device__ __forceinline__ void keep_leaf() {
    float* place = &shared.first_leaf[0][group * 128 + thread];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      place[i * kConsumers * 128] = acc[i];
      acc[i] = 0.0F;
    }
  }
  __device__ __forceinline__ void add_first_leaf() {
    const float* place = &shared.first_leaf[0][group * 128 + thread];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      acc[i] = place[i * kConsumers * 128] + acc[i];
    }
  }

  /// Four tiles of eight outputs of one token: lane q of each four has outputs 2 q, 2 q + 1 of
  /// every tile before, and all eight outputs of tile q behind.
  static __device__ __forceinline__ uint4
  whole_tile(uint32_t tile0, uint32_t tile1, uint32_t tile2, uint32_t tile3, int lane) {
    const bool odd = lane % 2 != 0;
    const uint32_t sent0 = __shfl_xor_sync(0xFFFFFFFFU, odd ? tile0 : tile1, 1);
    const uint32_t sent1 = __shfl_xor_sync(0xFFFFFFFFU, odd ? tile2 : tile3, 1);
    // Two words of tile (odd ? 1 : 0) and two of tile (odd ? 3 : 2), lower lane's word first.
    const uint2 near = odd ? make_uint2(sent0, tile1) : make_uint2(tile0, sent0);
    const uint2 far = odd ? make_uint2(sent1, tile3) : make_uint2(tile2, sent1);
    const bool high = lane % 4 >= 2;
    const uint32_t other0 = __shfl_xor_sync(0xFFFFFFFFU, high ? near.x : far.x, 2);
    const uint32_t other1 = __shfl_xor_sync(0xFFFFFFFFU, high ? near.y : far.y, 2);
    return high ? make_uint4(other0, other1, far.x, far.y)
                : make_uint4(near.x, near.y, other0, other1);
  }

  __device__ __forceinline__ void store(const Item& item) const {
    const Task& task = params.tasks[item.task];
    const int lane = thread % 32;
    const int32_t row =
        item.token_tile * kTileTokens + group * kUpperTokens + thread / 32 * 16 + lane / 4;
    uint16_t* upper = task.y + row * task.y_stride + item.output_tile * kTileOutputs + lane % 4 * 8;
    uint16_t* lower = upper + 8 * task.y_stride;
#pragma unroll
    for (int j = 0; j < kTileOutputs / 8; j += 4) {
      const auto pair = [&](int tile, int half) {
        const int at = 4 * (j + tile) + 2 * half;
        return ptx::pack_bf16(acc[at], acc[at + 1]);
      };
      const uint4 top = whole_tile(pair(0, 0), pair(1, 0), pair(2, 0), pair(3, 0), lane);
      const uint4 bottom = whole_tile(pair(0, 1), pair(1, 1), pair(2, 1), pair(3, 1), lane);
      if (row < params.num_tokens) {
        *reinterpret_cast<uint4*>(upper + j * 8) = top;
      }
      if (row + 8 < params.num_tokens) {
        *reinterpret_cast<uint4*>(lower + j * 8) = bottom;
      }
    }
  }
};

__device__ __forceinline__ void consume(const Params& params, Shared& shared, int group) {
  Consumer consumer{params, shared, group, static_cast<int>(threadIdx.x) % 128, {}, {}, {}};
#pragma unroll 1
  for (auto index = static_cast<int32_t>(blockIdx.x); index < params.num_items;
       index += static_cast<int32_t>(gridDim.x)) {
    const Item item = item_of(params, index);
    consumer.multiply(item);
    consumer.store(item);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    linear_prompt_kernel(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
  Shared& shared = ptx::dynamic_shared<Shared>();
  ptx::run_ring_roles<kConsumers, 40, 232>(
      shared,
      [&] { produce(params, maps, shared); },
      [&](int group) { consume(params, shared, group); });
}

}  // namespace

void start(const Params& params, const Maps& maps, device::StreamHandle stream) {
  const int32_t blocks = std::min(params.num_items, device::multiprocessor_count());
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(kThreads),
                  .shared_bytes = sizeof(Shared)},
                 linear_prompt_kernel,
                 params,
                 maps);
}

}  // namespace baleen::kernels::linear_prompt
