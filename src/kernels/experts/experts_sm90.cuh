#pragma once
// The persistent expert kernel for Hopper: three consumer warp groups and their producer warps per
// block, one block per multiprocessor. Body of experts_sm90.cu and experts_sm90_wide.cu.

#include <cmath>
#include <cstdint>

#include "device/launch.h"
#include "kernels/experts/expert_product.cuh"
#include "kernels/experts/expert_schedule.cuh"
#include "kernels/ptx/global_counter.cuh"
#include "kernels/ptx/pdl.cuh"
#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"

namespace baleen::kernels::experts {

inline constexpr int kThreads = kGroups * 160;  // a warp group and a producer warp each

/// What a consumer warp group knows about itself and its item.
struct Consumer {
  const Task& task;
  GroupShared& group;
  LanePlaces lane;
  int index;   // of the warp group
  int thread;  // within it
  RingPosition<kStages> stage;

  __device__ __forceinline__ void sync() const {
    ptx::named_barrier_sync(static_cast<uint32_t>(index) + 1U, 128);
  }
};

/// Streams the e4m3 rows of an up item into shared memory, half a buffer (four blocks of 128
/// inputs) ahead. A thread copies the same 16 bytes of the same row in every second block.
struct UpSupply {
  static constexpr int kAhead = kInputBlocks / 2;
  static_assert(kAhead == 4 && kTokens * 8 == 64, "128 threads cover two blocks");
  const uint8_t* source;
  uint32_t place;  // shared address
  uint32_t valid;  // 16, or 0 to fill with zeros
  int first;       // of the thread's two blocks in a group of four: 0 or 1
  int blocks;

  __device__ __forceinline__ UpSupply(const Consumer& consumer, const ExpertUnit& unit) {
    const ExpertsParams& params = consumer.task.params;
    const int row = consumer.thread / 8 % kTokens;
    const int byte = consumer.thread % 8 * 16;
    first = consumer.thread / 64;
    blocks = params.hidden / 128;
    const int token = row < unit.count ? unit.entries[row] / params.slots : 0;
    source = params.x_codes + static_cast<int64_t>(token) * params.hidden + first * 128 + byte;
    place = ptx::shared_address(consumer.group.input) +
            static_cast<uint32_t>(first) * kTokenBlockBytes +
            ptx::swizzled_128(static_cast<uint32_t>(row), static_cast<uint32_t>(byte));
    valid = row < unit.count ? 16 : 0;
  }

  __device__ __forceinline__ void fetch(int block) const {
    const uint32_t to = place + static_cast<uint32_t>(block) % kInputBlocks * kTokenBlockBytes;
    const uint8_t* from = source + block * 128;
    if (block + first < blocks) {
      ptx::async_copy_16_to(to, from, valid);
    }
    if (block + first + 2 < blocks) {
      ptx::async_copy_16_to(to + 2 * kTokenBlockBytes, from + 256, valid);
    }
    ptx::async_copy_commit();
  }

  __device__ __forceinline__ void load_scales(const Consumer& consumer,
                                              const ExpertUnit& unit) const {
    const ExpertsParams& params = consumer.task.params;
    const int row = consumer.thread % kTokens;
    const int token = row < unit.count ? unit.entries[row] / params.slots : 0;
    const uint8_t* codes = params.x_scales + static_cast<int64_t>(token) * blocks;
    for (int block = consumer.thread / kTokens; block < blocks; block += 128 / kTokens) {
      const float scale = numerics::ue8m0_to_float(__ldg(codes + block));
      consumer.group.scales[block * kTokens + row] =
          row < unit.count ? static_cast<uint16_t>(numerics::float_bits(scale) >> 16) : uint16_t{0};
    }
  }

  __device__ __forceinline__ void advance(const Consumer& consumer, int block) const {
    if (block % kAhead == 0) {
      ptx::async_copy_wait<0>();
      ptx::fence_async_shared();
      consumer.sync();  // also: everybody has finished with the other half
      if (block + kAhead < blocks) {
        fetch(block + kAhead);
      }
    }
  }
};

/// Quantises the hidden rows of a down item to e4m3 per 128 inputs, a buffer of eight blocks at a
/// time; rows that fit whole stay for the item's other tiles.
struct DownSupply {
  const uint16_t* rows;  // of the unit, [count, blocks * 128]
  int count;
  int blocks;
  bool filled;

  __device__ __forceinline__ void refill(const Consumer& consumer, int begin) {
    if (!filled) {
      consumer.sync();  // the products that read the old content are done
      quantise(consumer, begin);
      ptx::fence_async_shared();
      consumer.sync();
      filled = blocks <= kInputBlocks;
    }
  }

  /// A thread has eight values of row thread / 16 in each block; 16 lanes share a row's block.
  __device__ __forceinline__ void quantise(const Consumer& consumer, int begin) const {
    const int row = consumer.thread / 16;
    const int chunk = consumer.thread % 16;
    const uint16_t* source =
        rows + static_cast<int64_t>(row) * (blocks * 128) + begin * 128 + chunk * 8;
    const int held = min(kInputBlocks, blocks - begin);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int block = half * 4 + i;
        values[i] = make_uint4(0, 0, 0, 0);
        if (block < held && row < count) {
          values[i] = __ldcg(reinterpret_cast<const uint4*>(source + block * 128));
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int block = half * 4 + i;
        if (block < held) {
          store(consumer, values[i], begin + block, row, chunk);
        }
      }
    }
  }

  __device__ __forceinline__ void store(
      const Consumer& consumer, const uint4& packed, int block, int row, int chunk) const {
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
    float values[8];
    float largest = 0.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = ptx::low_bf16(words[i]);
      values[2 * i + 1] = ptx::high_bf16(words[i]);
      largest = fmaxf(largest, fmaxf(fabsf(values[2 * i]), fabsf(values[2 * i + 1])));
    }
#pragma unroll
    for (int distance = 1; distance < 16; distance *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, distance));
    }
    const float scale = numerics::q8_scale(largest);
    const float inverse = numerics::float_from_bits((254U << 23) - numerics::float_bits(scale));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] *= inverse;
    }
    uint8_t* place =
        consumer.group.input + block % kInputBlocks * kTokenBlockBytes +
        ptx::swizzled_128(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk) * 8);
    *reinterpret_cast<uint2*>(place) =
        make_uint2(ptx::pack_e4m3(values[0], values[1], values[2], values[3]),
                   ptx::pack_e4m3(values[4], values[5], values[6], values[7]));
    if (chunk == 0) {
      consumer.group.scales[block * kTokens + row] =
          static_cast<uint16_t>(numerics::float_bits(scale) >> 16);
    }
  }
};

__device__ __forceinline__ float clamped_swiglu(float gate, float up, float limit) {
  // A NaN stays one: fminf and fmaxf would drop it.
  const float g = gate > limit ? limit : gate;
  const float u = up > limit ? limit : (up < -limit ? -limit : up);
  return g / (1.0F + expf(-g)) * u;
}

/// Gate and up of a channel sit in one lane: SwiGLU, route weight and the store of the hidden rows.
__device__ __forceinline__ void store_hidden(const Consumer& consumer,
                                             const Item& item,
                                             float limit,
                                             const float (&sum)[kValues]) {
  const Task& task = consumer.task;
  const int channel = item.tile * 32 + consumer.thread / 32 * 8 + consumer.thread % 32 / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int column = consumer.thread % 4 * 2 + r;
    if (column < item.unit.count) {
      const float gate = numerics::round_to_bf16(sum[r]);
      const float up = numerics::round_to_bf16(sum[2 + r]);
      const float value = clamped_swiglu(gate, up, limit) * item.unit.weights[column];
      task.hidden_rows[static_cast<int64_t>(item.unit.begin + column) * task.params.width +
                       channel] = numerics::bf16_from_float(value);
    }
  }
}

__device__ __forceinline__ void store_slots(const Consumer& consumer,
                                            const Item& item,
                                            int tile,
                                            const float (&sum)[kValues]) {
  const Task& task = consumer.task;
  const int row = tile * kExpertTileRows + consumer.thread / 32 * 16 + consumer.thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int column = consumer.thread % 4 * 2 + i % 2;
    if (column < item.unit.count) {
      const int64_t at =
          static_cast<int64_t>(item.unit.entries[column]) * task.params.hidden + row + i / 2 * 8;
      if (task.params.round == MoeRound::kPerExpert) {
        static_cast<uint16_t*>(task.slot_rows)[at] = numerics::bf16_from_float(sum[i]);
      } else {
        static_cast<float*>(task.slot_rows)[at] = sum[i];
      }
    }
  }
}

/// Counts this item for its tokens and sums the slots of those that are now complete.
__device__ __forceinline__ void combine(const Consumer& consumer, const Item& item) {
  const Task& task = consumer.task;
  const ExpertsParams& params = task.params;
  GroupShared& group = consumer.group;
  consumer.sync();
  if (consumer.thread < 32) {
    bool complete = false;
    int32_t token = 0;
    if (consumer.thread < item.unit.count) {
      token = item.unit.entries[consumer.thread] / params.slots;
      int32_t* done = task.done + static_cast<int64_t>(token) * (params.hidden / kExpertTileRows) +
                      item.tile / item.tiles;
      complete = ptx::add_acquire_release(done, 1) == params.slots - 1;
      if (complete) {
        *done = 0;
      }
    }
    const uint32_t mask = __ballot_sync(0xFFFFFFFFU, complete);
    if (complete) {
      group.finished[__popc(mask & ((1U << consumer.thread) - 1U))] = token;
    }
    if (consumer.thread == 0) {
      group.num_finished = __popc(mask);
    }
  }
  consumer.sync();
  const int pairs = item.tiles * (kExpertTileRows / 2);
  const int total = group.num_finished * pairs;
  for (int i = consumer.thread; i < total; i += 128) {
    const int which = i / pairs;
    const int column = item.tile * kExpertTileRows + (i - which * pairs) * 2;
    const int64_t token = group.finished[which];
    const int64_t first = token * params.slots * params.hidden + column;
    if (params.round == MoeRound::kPerExpert) {
      uint32_t values[8];
#pragma unroll
      for (int s = 0; s < 8; ++s) {
        if (s < params.slots) {
          values[s] = __ldcg(
              reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(task.slot_rows) +
                                                first + static_cast<int64_t>(s) * params.hidden));
        }
      }
      float left = 0.0F;
      float right = 0.0F;
#pragma unroll
      for (int s = 0; s < 8; ++s) {
        if (s < params.slots) {
          left += ptx::low_bf16(values[s]);
          right += ptx::high_bf16(values[s]);
        }
      }
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(params.y) + token * params.hidden +
                                   column) = ptx::pack_bf16(left, right);
    } else {
      float2 total_pair = make_float2(0.0F, 0.0F);
      for (int s = 0; s < params.slots; ++s) {
        const float2 value = __ldcg(
            reinterpret_cast<const float2*>(static_cast<const float*>(task.slot_rows) + first +
                                            static_cast<int64_t>(s) * params.hidden));
        total_pair.x += value.x;
        total_pair.y += value.y;
      }
      *reinterpret_cast<float2*>(static_cast<float*>(params.y) + token * params.hidden + column) =
          total_pair;
    }
  }
}

/// One row tile of the up product.
template <bool kFp8, bool kWide>
__device__ __forceinline__ void run_up(Consumer& consumer, const Item& item) {
  const Task& task = consumer.task;
  const UpSupply supply(consumer, item.unit);
  supply.fetch(0);
  supply.load_scales(consumer, item.unit);
  float sum[kValues];
  multiply_tile</*kLeaves=*/false, kFp8, kWide>(
      consumer.group,
      consumer.lane,
      consumer.stage,
      supply.blocks,
      supply.blocks,
      0,
      [](int) {},
      [&](int block) { supply.advance(consumer, block); },
      sum);
  store_hidden(consumer, item, kFp8 ? task.params.shared_limit : task.params.limit, sum);
  consumer.sync();
  if (consumer.thread == 0) {
    ptx::add_release(task.ready + item.number, 1);
  }
}

/// A run of row tiles of the down product, once the unit's up tiles are complete.
template <bool kFp8, bool kWide>
__device__ __forceinline__ void run_down(Consumer& consumer, const Item& item) {
  const Task& task = consumer.task;
  const ExpertsParams& params = task.params;
  if (consumer.thread == 0) {
    const int up_tiles = 2 * params.width / kExpertTileRows;
    ptx::wait_or_trap([&] { return ptx::load_acquire(task.ready + item.number) == up_tiles; });
  }
  consumer.sync();
  DownSupply supply{task.hidden_rows + static_cast<int64_t>(item.unit.begin) * params.width,
                    item.unit.count,
                    params.width / 128,
                    false};
  for (int tile = item.tile; tile < item.tile + item.tiles; ++tile) {
    float sum[kValues];
    multiply_tile</*kLeaves=*/true, kFp8, kWide>(
        consumer.group,
        consumer.lane,
        consumer.stage,
        supply.blocks,
        kInputBlocks,
        params.leaf_blocks,
        [&](int block) { supply.refill(consumer, block); },
        [](int) {},
        sum);
    store_slots(consumer, item, tile, sum);
  }
  combine(consumer, item);
}

/// One row tile of the up product by the three groups of a block, for the first item of a launch:
/// group g takes stages g, g + 3, ... and leaves each block's promoted product in the stage's
/// place; the first group adds them in order, so that the bits are those of one chain.
template <bool kWide>
__device__ __forceinline__ void run_shared_up(Consumer& consumer,
                                              BlockShared& shared,
                                              const Item& item) {
  constexpr uint32_t kEveryone = 7;  // named barrier of all consumers
  constexpr uint32_t kPartBytes = 128 * 16;
  static_assert(2 * kPartBytes <= kStageBytes);
  const Task& task = consumer.task;
  GroupShared& group = consumer.group;
  const UpSupply supply(consumer, item.unit);
  const int blocks = supply.blocks;
  const int stages = ((blocks + 1) / 2 - consumer.index + kGroups - 1) / kGroups;
  const bool used = consumer.thread % 4 * 2 < item.unit.count;  // one of the lane's tokens exists
  const auto fetch = [&](int stage) {
    const int block = 2 * (stage * kGroups + consumer.index);
    if (stage < stages && block + supply.first < blocks) {
      ptx::async_copy_16_to(
          supply.place + static_cast<uint32_t>(stage) % (kInputBlocks / 2) * (2 * kTokenBlockBytes),
          supply.source + block * 128,
          supply.valid);
    }
    ptx::async_copy_commit();
  };
  for (int stage = 0; stage < kInputBlocks / 2; ++stage) {
    fetch(stage);
  }
  supply.load_scales(consumer, item.unit);
  const uint64_t descriptor = ptx::k_major_descriptor(group.input);
  const auto descriptor_high = static_cast<uint32_t>(descriptor >> 32);
  const auto product = [&](Weights& weights, int stage, int odd, float(&sum)[kValues]) {
    float part[kValues];
    start_block(weights,
                static_cast<uint32_t>(descriptor) +
                    static_cast<uint32_t>(stage * 2 + odd) % kInputBlocks * (kTokenBlockBytes / 16),
                descriptor_high,
                part);
    const int block = 2 * (stage * kGroups + consumer.index) + odd;
    promote_block(
        weights, consumer.lane.scales + static_cast<uint32_t>(block) * (kTokens * 2), part, sum);
  };
  for (int stage = 0; stage < stages; ++stage) {
    if (stage % 2 == 0) {
      ptx::async_copy_wait<0>();
      ptx::fence_async_shared();
      consumer.sync();  // tokens of this stage and the next; the two before are used up
      if (stage >= 2) {
        fetch(stage + 2);
        fetch(stage + 3);
      }
    }
    float first[kValues] = {};
    float second[kValues] = {};
    Weights weights;
    load_stage<kWide>(group, consumer.lane, {stage, 0}, 0, weights);
    product(weights, stage, 0, first);
    if (2 * (stage * kGroups + consumer.index) + 1 < blocks) {
      Weights odd;
      load_stage<kWide>(group, consumer.lane, {stage, 0}, 1, odd);
      product(odd, stage, 1, second);
    }
    consumer.sync();  // the weights of this stage are in registers
    if (used) {
      auto* parts = reinterpret_cast<float4*>(group.weights[stage]) + consumer.thread;
      parts[0] = make_float4(first[0], first[1], first[2], first[3]);
      parts[128] = make_float4(second[0], second[1], second[2], second[3]);
    }
  }
  ptx::named_barrier_sync(kEveryone, kGroups * 128);
  if (consumer.index == 0) {
    float sum[kValues] = {};
    if (used) {
      for (int block = 0; block < blocks; ++block) {
        const int pair = block / 2;
        const float4 part = reinterpret_cast<const float4*>(
            shared.groups[pair % kGroups]
                .weights[pair / kGroups])[block % 2 * 128 + consumer.thread];
        sum[0] += part.x;
        sum[1] += part.y;
        sum[2] += part.z;
        sum[3] += part.w;
      }
    }
    store_hidden(consumer, item, task.params.limit, sum);
    consumer.sync();
    if (consumer.thread == 0) {
      ptx::add_release(task.ready + item.number, 1);
    }
  }
  ptx::fence_async_shared();  // the copy engine writes where the parts were
  ptx::named_barrier_sync(kEveryone, kGroups * 128);
  for (int stage = 0; stage < stages; ++stage) {
    if (consumer.thread % 32 == 0) {
      ptx::barrier_arrive(&group.empty[stage]);
    }
    consumer.stage.advance();
  }
}

template <bool kFp8, bool kWide>
__device__ __forceinline__ void run_item(Consumer& consumer, const Item& item) {
  if (item.kind == ItemKind::kDown) {
    run_down<kFp8, kWide>(consumer, item);
  } else {
    run_up<kFp8, kWide>(consumer, item);
  }
}

template <bool kWide>
__device__ __forceinline__ void consume(const Task& task, BlockShared& shared, int index) {
  Consumer consumer{task,
                    shared.groups[index],
                    lane_places(shared.groups[index], shared.table, threadIdx.x % 128),
                    index,
                    static_cast<int>(threadIdx.x % 128),
                    {}};
  GroupShared& group = consumer.group;
  RingPosition<kQueue> place;
  while (true) {
    ptx::barrier_wait(&group.announced[place.place], place.parity);
    const Item& item = group.queue[place.place];  // stays in shared memory to save registers
    if (item.kind == ItemKind::kEnd) {
      return;
    }
    if (item.kind == ItemKind::kSharedUp) {
      run_shared_up<kWide>(consumer, shared, item);
    } else if (item.unit.expert == task.params.num_experts) {
      run_item<true, kWide>(consumer, item);
    } else {
      run_item<false, kWide>(consumer, item);
    }
    __syncwarp();
    if (consumer.thread % 32 == 0) {
      ptx::barrier_arrive(&group.read[place.place]);
    }
    place.advance();
  }
}

template <bool kWide>
__global__ void __launch_bounds__(kThreads, 1) experts_kernel(const __grid_constant__ Task task) {
  extern __shared__ __align__(1024) uint8_t memory[];
  BlockShared& shared = *reinterpret_cast<BlockShared*>(memory);
  if (kWide && threadIdx.x < 16) {
    shared.table[threadIdx.x] = table_magnitudes(min(threadIdx.x, 14U));
  }
  const auto slot = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x < kGroups * 32) {
    GroupShared& group = shared.groups[threadIdx.x / 32];
    if (slot < kStages) {
      ptx::barrier_init(&group.full[slot], 1);
      ptx::barrier_init(&group.empty[slot], 4);
    }
    if (slot < kQueue) {
      ptx::barrier_init(&group.announced[slot], 1);
      ptx::barrier_init(&group.read[slot], 4);
    }
    ptx::fence_barrier_init();
  }
  if (threadIdx.x == 0) {
    shared.up_issued = 0;
  }
  __syncthreads();
  ptx::wait_for_predecessor();
  // The same in every lane, and known to be: addresses derived from it stay in uniform registers.
  const int index = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 128, 0);
  if (index == kGroups) {
    produce(task,
            shared,
            __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0) - 4 * kGroups);
  } else {
    consume<kWide>(task, shared, index);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.last =
        ptx::add_acquire_release(task.exits, 1) == static_cast<int32_t>(gridDim.x) - 1 ? 1 : 0;
  }
  __syncthreads();
  if (shared.last != 0) {  // every other block is past its last access
    const int32_t units = __ldcg(task.params.lists.num_units);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < units; i += kThreads) {
      task.ready[i] = 0;
    }
    if (threadIdx.x == 0) {
      *task.next_item = 0;
      *task.exits = 0;
    }
  }
}

template <bool kWide>
void launch_kernel(const Task& task, int blocks, device::StreamHandle stream) {
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(kThreads),
                  .shared_bytes = sizeof(BlockShared),
                  .programmatic = task.params.programmatic},
                 experts_kernel<kWide>,
                 task);
}

extern template void launch_kernel<true>(const Task&, int, device::StreamHandle);

static_assert(sizeof(BlockShared) <= 227 * 1024);

}  // namespace baleen::kernels::experts
