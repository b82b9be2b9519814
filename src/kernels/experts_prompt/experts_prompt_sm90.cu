// The two products of experts_prompt for Hopper. A persistent block has three consumer warp groups,
// a tile of 64 rows each, and one producer warp; an item is a run of neighbouring tiles, one per
// group (the last of a matrix may have fewer), for all tokens of a group. Weights of all tiles and
// the tokens come through one ring, two blocks of 128 inputs (FP8: one) per stage. A stage is given
// back when the tensor cores have read it and every value loaded from it is in registers. Items
// have fixed owners: nobody waits for another block.

#include <cstdint>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/experts/expert_results.cuh"
#include "kernels/experts_prompt/experts_prompt.h"
#include "kernels/experts_prompt/prompt_product.cuh"
#include "kernels/experts_prompt/prompt_task.h"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/ring_place.cuh"
#include "kernels/ptx/ring_roles.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "numerics/bfloat16.h"

namespace baleen::kernels {
namespace experts_prompt {
namespace {

constexpr int kConsumers = 3;  // warp groups
constexpr int kThreads = (kConsumers + 1) * 128;
constexpr int kStages = 4;
constexpr int kFp4StageBlocks = 2;
// A stage: weights of the tiles, then the tokens' codes, then their scales.
constexpr int kTokenPlace = kConsumers * kFp4StageBlocks * kFp4BlockBytes;
constexpr int kTokenBytes = kFp4StageBlocks * kPromptGroupUnits * kUnitBlockBytes;
constexpr int kScalePlace = kTokenPlace + kTokenBytes;
constexpr int kStageBytes = kScalePlace + 128;
static_assert(kTokenPlace >= kConsumers * kFp8BlockBytes && kTokenPlace % 128 == 0);
static_assert(kPromptGroupUnits * kExpertUnitTokens == kMostColumns);
static_assert(kStageBytes % 128 == 0);

struct alignas(1024) Shared {
  uint8_t stages[kStages][kStageBytes];
  uint8_t pending[kConsumers][kPendingBytes];
  ptx::Barrier full[kStages];
  ptx::Barrier empty[kStages];
};
static_assert(sizeof(Shared) <= 227 * 1024);

/// Which of the two products, with what they read.
struct Side {
  bool down;
  int32_t blocks;  // of 128 inputs
  int32_t tiles;   // of 64 rows, of one expert
  int32_t runs;    // of kConsumers tiles, the last one maybe shorter
  const uint8_t* codes;
  const uint16_t* scales;
};

template <bool kDown>
__device__ __forceinline__ Side side_of(const Task& task) {
  const ExpertsParams& params = task.params;
  const int32_t tiles = (kDown ? params.hidden : 2 * params.width) / kExpertTileRows;
  return {kDown,
          (kDown ? params.width : params.hidden) / kExpertBlockInputs,
          tiles,
          (tiles + kConsumers - 1) / kConsumers,
          kDown ? task.hidden_codes : task.input_codes,
          kDown ? task.hidden_scales : task.input_scales};
}

using RingPlace = ptx::RingPlace<kStages>;

__device__ __forceinline__ Group load_group(const Task& task, int32_t number) {
  const auto* words = reinterpret_cast<const int4*>(task.groups + number);
  const int4 first = __ldg(words);
  const int4 second = __ldg(words + 1);
  Group group;
  group.expert = first.x;
  group.first_unit = first.y;
  group.units = first.z;
  group.count = first.w;
  group.begin = second.x;
  return group;
}

/// One lane copies the stages of all items of this block, in the order in which they are consumed.
__device__ __forceinline__ void produce(const Task& task, const Side& side, Shared& shared) {
  const ExpertsParams& params = task.params;
  const int32_t num_items = __ldg(task.num_groups) * side.runs;
  RingPlace place;
  for (auto item = static_cast<int32_t>(blockIdx.x); item < num_items;
       item += static_cast<int32_t>(gridDim.x)) {
    const int32_t number = item / side.runs;
    const int32_t run = item - number * side.runs;
    const int32_t tiles = min(kConsumers, side.tiles - run * kConsumers);
    const Group group = load_group(task, number);
    const bool fp8 = group.expert == params.num_experts;
    const int32_t block_bytes = fp8 ? kFp8BlockBytes : kFp4BlockBytes;
    const int64_t tile_bytes = static_cast<int64_t>(side.blocks) * block_bytes;
    const std::byte* base =
        fp8 ? (side.down ? params.shared_down : params.shared_up)
            : (side.down ? params.down : params.up) + group.expert * (side.tiles * tile_bytes);
    const std::byte* weights = base + run * kConsumers * tile_bytes;
    const int64_t first = static_cast<int64_t>(group.first_unit) * side.blocks;  // unit-blocks
    const uint8_t* codes = side.codes + first * kUnitBlockBytes;
    const uint16_t* scales = side.scales + first * kExpertUnitTokens;
    // The shared expert's weights serve many groups, others few.
    const uint64_t policy = fp8 ? ptx::kEvictNormal : ptx::kEvictFirst;
    const int32_t stage_blocks = fp8 ? 1 : kFp4StageBlocks;
    for (int32_t block = 0; block < side.blocks; block += stage_blocks) {
      const int32_t held = min(stage_blocks, side.blocks - block);
      const auto weight_bytes = static_cast<uint32_t>(held * block_bytes);
      const auto token_bytes = static_cast<uint32_t>(held * group.units * kUnitBlockBytes);
      const auto scale_bytes = static_cast<uint32_t>(held * group.units * kExpertUnitTokens * 2);
      uint8_t* stage = shared.stages[place.stage];
      ptx::Barrier* full = &shared.full[place.stage];
      ptx::barrier_wait_or_leave(&shared.empty[place.stage], place.parity ^ 1U);
      ptx::barrier_expect_bytes(
          full, static_cast<uint32_t>(tiles) * weight_bytes + token_bytes + scale_bytes);
      for (int tile = 0; tile < tiles; ++tile) {
        ptx::bulk_load(stage + static_cast<uint32_t>(tile * stage_blocks * block_bytes),
                       weights + tile * tile_bytes + block * block_bytes,
                       weight_bytes,
                       full,
                       policy);
      }
      ptx::bulk_load(stage + kTokenPlace,
                     codes + static_cast<int64_t>(block) * group.units * kUnitBlockBytes,
                     token_bytes,
                     full);
      ptx::bulk_load(stage + kScalePlace,
                     scales + static_cast<int64_t>(block) * group.units * kExpertUnitTokens,
                     scale_bytes,
                     full);
      place.advance();
    }
  }
}

/// What a consumer thread knows about itself.
struct Consumer {
  const Task& task;
  Shared& shared;
  int index;   // of the warp group: its tile of the run
  int thread;  // within it
  RingPlace place;
};

/// The product of a tile with a group's tokens.
template <bool kFp8, int kColumns>
__device__ __forceinline__ void multiply(Consumer& consumer,
                                         const Side& side,
                                         int32_t units,
                                         int32_t leaf_blocks,
                                         Product<kFp8, kColumns>& product) {
  constexpr int kStageBlocks = kFp8 ? 1 : kFp4StageBlocks;
  constexpr uint32_t kBlockBytes = kFp8 ? kFp8BlockBytes : kFp4BlockBytes;
  constexpr uint32_t kCodeBytes = kBlockBytes - kExpertWordBytes;
  Shared& shared = consumer.shared;
  const uint32_t ring = ptx::shared_address(shared.stages[0]);
  const auto thread = static_cast<uint32_t>(consumer.thread);
  const uint32_t lane_codes =
      static_cast<uint32_t>(consumer.index * kStageBlocks) * kBlockBytes + thread * 16;
  const uint32_t lane_words = static_cast<uint32_t>(consumer.index * kStageBlocks) * kBlockBytes +
                              kCodeBytes + thread / 4 * 8;
  const uint32_t lane_scales = kScalePlace + thread % 4 * 4;
  RingPlace& place = consumer.place;
  const auto stage_of = [&] { return ring + static_cast<uint32_t>(place.stage) * kStageBytes; };
  product.clear();
  uint32_t leaf = 0;
  int32_t leaf_left = leaf_blocks;
  RawBlock<kFp8> raw;
  ptx::barrier_wait_or_leave(&shared.full[place.stage], place.parity);
  uint32_t stage = stage_of();
  raw.load(stage + lane_codes, stage + lane_words);
  uint32_t within = 0;  // block of the stage
#pragma unroll 1
  for (int32_t block = 0; block < side.blocks; ++block) {
    const uint32_t tokens =
        stage + kTokenPlace + within * static_cast<uint32_t>(units * kUnitBlockBytes);
    product.prepare(
        raw, stage + lane_scales + within * static_cast<uint32_t>(units * kExpertUnitTokens * 2));
    const bool ends = block + 1 == side.blocks;
    const bool gives = ends || within + 1 == kStageBlocks;
    const int given = place.stage;
    const auto next_block = [&] {
      if (gives) {
        place.advance();
        within = 0;
        if (!ends) {
          ptx::barrier_wait_or_leave(&shared.full[place.stage], place.parity);
          stage = stage_of();
        }
      } else {
        ++within;
      }
      if (!ends) {
        raw.load(stage + lane_codes + within * kBlockBytes,
                 stage + lane_words + within * kBlockBytes);
      }
    };
    if constexpr (!kFp8) {
      next_block();  // its weights come while the tensor cores work
    }
    product.start(__shfl_sync(0xFFFFFFFFU, tokens, 0));
    const uint32_t loaded = product.finish();
    if (gives) {
      __syncwarp();
      // The arrival must not overtake loads that wait in the load unit behind others.
      if (thread % 32 == 0 && loaded != 0xFFFFFFFFU) {
        ptx::barrier_arrive(&shared.empty[given]);
      }
    }
    if constexpr (kFp8) {
      next_block();  // its codes are the operand: not before this one has been read
    }
    if (--leaf_left == 0 && !ends) {
      product.add_leaf(leaf, false);
      leaf_left = leaf_blocks;
      ++leaf;
    }
  }
  product.add_leaf(leaf, true);
}

/// A run without a tile for this warp group: it gives every stage back as it comes.
__device__ __forceinline__ void pass_item(Consumer& consumer, const Side& side, bool fp8) {
  const int32_t stage_blocks = fp8 ? 1 : kFp4StageBlocks;
  for (int32_t block = 0; block < side.blocks; block += stage_blocks) {
    RingPlace& place = consumer.place;
    ptx::barrier_wait_or_leave(&consumer.shared.full[place.stage], place.parity);
    __syncwarp();
    if (consumer.thread % 32 == 0) {
      ptx::barrier_arrive(&consumer.shared.empty[place.stage]);
    }
    place.advance();
  }
}

/// Value i of a lane: row 16 * warp + lane / 4 + 8 * (i / 2 % 2), column 8 * (i / 4) + 2 * (lane %
/// 4) + i % 2.
__device__ __forceinline__ int column_of(int thread, int i) {
  return i / 4 * 8 + thread % 4 * 2 + i % 2;
}

/// Gate and up of a channel sit in one lane: SwiGLU, route weight and the hidden rows.
template <bool kFp8, int kColumns>
__device__ __forceinline__ void store_hidden(const Consumer& consumer,
                                             const Group& group,
                                             int32_t tile,
                                             const Product<kFp8, kColumns>& product) {
  const Task& task = consumer.task;
  const ExpertsParams& params = task.params;
  const ExpertUnit* units = params.lists.units + group.first_unit;
  const float limit = kFp8 ? params.shared_limit : params.limit;
  const int channel = tile * 32 + consumer.thread / 32 * 8 + consumer.thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const int column = column_of(consumer.thread, i);
    if (i % 4 < 2 && column < group.count) {
      const float gate = numerics::round_to_bf16(product.sum[i]);
      const float up = numerics::round_to_bf16(product.sum[i + 2]);
      const float weight = __ldg(&units[column / 8].weights[column % 8]);
      task.hidden_rows[static_cast<int64_t>(group.begin + column) * params.width + channel] =
          numerics::bf16_from_float(experts::clamped_swiglu(gate, up, limit) * weight);
    }
  }
}

template <bool kFp8, int kColumns>
__device__ __forceinline__ void store_slots(const Consumer& consumer,
                                            const Group& group,
                                            int32_t tile,
                                            const Product<kFp8, kColumns>& product) {
  const Task& task = consumer.task;
  const ExpertsParams& params = task.params;
  const ExpertUnit* units = params.lists.units + group.first_unit;
  const int row = tile * kExpertTileRows + consumer.thread / 32 * 16 + consumer.thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const int column = column_of(consumer.thread, i);
    if (column < group.count) {
      const int64_t at =
          static_cast<int64_t>(__ldg(&units[column / 8].entries[column % 8])) * params.hidden +
          row + i / 2 % 2 * 8;
      if (params.round == MoeRound::kPerExpert) {
        static_cast<uint16_t*>(task.slot_rows)[at] = numerics::bf16_from_float(product.sum[i]);
      } else {
        static_cast<float*>(task.slot_rows)[at] = product.sum[i];
      }
    }
  }
}

template <bool kDown, bool kFp8, int kColumns>
__device__ __forceinline__ void run_item(Consumer& consumer,
                                         const Side& side,
                                         const Group& group,
                                         int32_t tile) {
  const ExpertsParams& params = consumer.task.params;
  constexpr int kUpLeaves = 4;
  const int32_t leaf_blocks =
      kDown ? params.leaf_blocks : (side.blocks + kUpLeaves - 1) / kUpLeaves;
  Product<kFp8, kColumns> product;
  product.pending = ptx::shared_address(consumer.shared.pending[consumer.index]) +
                    static_cast<uint32_t>(consumer.thread) * 4;
  multiply(consumer, side, group.units, leaf_blocks, product);
  if constexpr (kDown) {
    store_slots(consumer, group, tile, product);
  } else {
    store_hidden(consumer, group, tile, product);
  }
}

template <bool kDown>
__device__ __forceinline__ void consume(const Task& task,
                                        const Side& side,
                                        Shared& shared,
                                        int index) {
  Consumer consumer{task, shared, index, static_cast<int>(threadIdx.x) % 128, {}};
  const auto grid = static_cast<int32_t>(gridDim.x);
  const int32_t num_items = __ldg(task.num_groups) * side.runs;
  auto item = static_cast<int32_t>(blockIdx.x);
  if (item >= num_items) {
    return;
  }
  Group next = load_group(task, item / side.runs);
#pragma unroll 1
  for (; item < num_items; item += grid) {
    const Group group = next;
    const int32_t tile = item % side.runs * kConsumers + consumer.index;
    if (item + grid < num_items) {
      next = load_group(task, (item + grid) / side.runs);  // used when this item is done
    }
    if (tile >= side.tiles) {
      pass_item(consumer, side, group.expert == task.params.num_experts);
    } else if (group.expert == task.params.num_experts) {
      if (group.units <= 2) {
        run_item<kDown, true, 16>(consumer, side, group, tile);
      } else {
        run_item<kDown, true, 32>(consumer, side, group, tile);
      }
    } else if (group.units == 1) {
      run_item<kDown, false, 8>(consumer, side, group, tile);
    } else if (group.units == 2) {
      run_item<kDown, false, 16>(consumer, side, group, tile);
    } else if (group.units == 3) {
      run_item<kDown, false, 24>(consumer, side, group, tile);
    } else {
      run_item<kDown, false, 32>(consumer, side, group, tile);
    }
  }
}

template <bool kDown>
__global__ void __launch_bounds__(kThreads, 1) product_kernel(const __grid_constant__ Task task) {
  Shared& shared = ptx::dynamic_shared<Shared>();
  const Side side = side_of<kDown>(task);
  ptx::run_ring_roles<kConsumers, 32, 160>(
      shared,
      [&] { produce(task, side, shared); },
      [&](int group) { consume<kDown>(task, side, shared, group); });
}

}  // namespace
}  // namespace experts_prompt

void launch_experts_prompt(const ExpertsParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(experts_prompt_supported(params),
               "tokens={} hidden={} width={} slots={} experts={} leaf_blocks={}",
               params.num_tokens,
               params.hidden,
               params.width,
               params.slots,
               params.num_experts,
               params.leaf_blocks);
  if (params.num_tokens == 0) {
    return;
  }
  int device = 0;
  int blocks = 0;
  BALEEN_CUDA_CHECK(cudaGetDevice(&device));
  BALEEN_CUDA_CHECK(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device));
  const ExpertsPromptWorkspace place = experts_prompt_workspace(params);
  auto* base = static_cast<std::byte*>(params.workspace);
  experts_prompt::Task task{};
  task.params = params;
  task.max_units =
      static_cast<int32_t>(max_expert_units(params.num_tokens,
                                            params.slots - (params.shared_up != nullptr ? 1 : 0),
                                            params.num_experts,
                                            params.shared_up != nullptr));
  task.num_groups = reinterpret_cast<int32_t*>(base + place.num_groups);
  task.groups = reinterpret_cast<experts_prompt::Group*>(base + place.groups);
  task.input_codes = reinterpret_cast<uint8_t*>(base + place.input_codes);
  task.input_scales = reinterpret_cast<uint16_t*>(base + place.input_scales);
  task.hidden_rows = reinterpret_cast<uint16_t*>(base + place.hidden_rows);
  task.hidden_codes = reinterpret_cast<uint8_t*>(base + place.hidden_codes);
  task.hidden_scales = reinterpret_cast<uint16_t*>(base + place.hidden_scales);
  task.slot_rows = base + place.slot_rows;
  const device::LaunchShape product{.grid = dim3(static_cast<unsigned>(blocks)),
                                    .block = dim3(experts_prompt::kThreads),
                                    .shared_bytes = sizeof(experts_prompt::Shared)};
  experts_prompt::launch_inputs(task, stream);
  device::launch(stream, product, experts_prompt::product_kernel<false>, task);
  experts_prompt::launch_hidden(task, stream);
  device::launch(stream, product, experts_prompt::product_kernel<true>, task);
  experts_prompt::launch_combine(task, stream);
}

}  // namespace baleen::kernels
