#pragma once
// The persistent expert kernel for Hopper: four consumer warp groups and their producer warps per
// block, one block per multiprocessor. Body of experts_sm90.cu and experts_sm90_wide.cu.

#include <cmath>
#include <cstdint>

#include "device/launch.h"
#include "kernels/experts/expert_product.cuh"
#include "kernels/experts/expert_schedule.cuh"
#include "kernels/ptx/global_counter.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/prefetch.cuh"
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
/// inputs) ahead. A thread copies the same 16 bytes of the same row in every second block. Blocks
/// count in the group's own order: all of them, or with `stride` 4 every fourth pair.
struct UpSupply {
  static constexpr int kAhead = kInputBlocks / 2;
  static_assert(kAhead == 4 && kTokens * 8 == 64, "128 threads cover two blocks");
  const uint8_t* source;
  uint32_t place;  // shared address
  int valid;       // 16, or 0 to fill with zeros
  int first;       // of the thread's two blocks in a group of four: 0 or 1
  int stride;      // pairs from one pair of the group to the next
  int length;      // blocks of the group

  __device__ __forceinline__
  UpSupply(const Consumer& consumer, const ExpertUnit& unit, int stride_in, int length_in)
      : stride(stride_in), length(length_in) {
    const ExpertsParams& params = consumer.task.params;
    const int row = consumer.thread / 8 % kTokens;
    const int byte = consumer.thread % 8 * 16;
    first = consumer.thread / 64;
    const int token = row < unit.count ? unit.entries[row] / params.slots : 0;
    source = params.x_codes + static_cast<int64_t>(token) * params.hidden + first * 128 + byte +
             (stride > 1 ? consumer.index * 256 : 0);
    place = ptx::shared_address(consumer.group.input) +
            static_cast<uint32_t>(first) * kTokenBlockBytes +
            ptx::swizzled_128(static_cast<uint32_t>(row), static_cast<uint32_t>(byte));
    valid = row < unit.count ? 16 : 0;
  }

  __device__ __forceinline__ void fetch(int step) const {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int at = step + 2 * pair;
      if (at + first < length) {
        ptx::async_copy_16_to(place + static_cast<uint32_t>(at) % kInputBlocks * kTokenBlockBytes,
                              source + at * stride * 128,
                              static_cast<uint32_t>(valid));
      }
    }
    ptx::async_copy_commit();
  }

  __device__ __forceinline__ void load_scales(const Consumer& consumer,
                                              const ExpertUnit& unit) const {
    const ExpertsParams& params = consumer.task.params;
    const int blocks = params.hidden / 128;
    const int row = consumer.thread % kTokens;
    if (row < unit.count) {
      const uint8_t* codes =
          params.x_scales + static_cast<int64_t>(unit.entries[row] / params.slots) * blocks;
#pragma unroll 2
      for (int block = consumer.thread / kTokens; block < blocks; block += 128 / kTokens) {
        const float scale = numerics::ue8m0_to_float(__ldg(codes + block));
        consumer.group.scales[block * kTokens + row] =
            static_cast<uint16_t>(numerics::float_bits(scale) >> 16);
      }
    }
  }

  /// Before step % 4 == 0.
  __device__ __forceinline__ void advance(const Consumer& consumer, int step) const {
    ptx::async_copy_wait<0>();
    ptx::fence_async_shared();
    consumer.sync();  // also: everybody has finished with the other half
    fetch(step + kAhead);
  }
};

/// Quantises the hidden rows of a down item to e4m3 per 128 inputs, blocks [begin, begin + 8). Rows
/// beyond the unit's count stay as they are: their columns are not used.
__device__ __forceinline__ void quantise_hidden(const Consumer& consumer,
                                                const Item& item,
                                                int begin) {
  const int width = consumer.task.params.width;
  const int held = min(kInputBlocks, width / 128 - begin);
  // Sixteen lanes share a block of a row, eight values each.
  const int row_threads = held * 16;
  const int rows = 128 / row_threads;  // in one pass
  const int block = consumer.thread % row_threads / 16;
  const int chunk = consumer.thread % 16;
  int row = consumer.thread / row_threads;
  row = row < rows ? row : kTokens;
  const uint16_t* source = consumer.task.hidden_rows +
                           static_cast<int64_t>(item.unit.begin + row) * width +
                           (begin + block) * 128 + chunk * 8;
  const int count = item.unit.count;
  uint4 packed = make_uint4(0, 0, 0, 0);
  if (row < count) {
    packed = __ldcg(reinterpret_cast<const uint4*>(source));
  }
#pragma unroll 1
  for (; row < count; row += rows) {  // the sixteen lanes go together
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
    source += static_cast<int64_t>(rows) * width;
    if (row + rows < count) {
      packed = __ldcg(reinterpret_cast<const uint4*>(source));
    }
    float values[8];
    float largest = 0.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = ptx::low_bf16(words[i]);
      values[2 * i + 1] = ptx::high_bf16(words[i]);
      largest = fmaxf(largest, fmaxf(fabsf(values[2 * i]), fabsf(values[2 * i + 1])));
    }
    const uint32_t lanes = 0xFFFFU << (consumer.thread & 16);
#pragma unroll
    for (int distance = 1; distance < 16; distance *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(lanes, largest, distance));
    }
    const float scale = numerics::q8_scale(largest);
    const float inverse = numerics::float_from_bits((254U << 23) - numerics::float_bits(scale));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] *= inverse;
    }
    uint8_t* place =
        consumer.group.input + block * kTokenBlockBytes +
        ptx::swizzled_128(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk) * 8);
    *reinterpret_cast<uint2*>(place) =
        make_uint2(ptx::pack_e4m3(values[0], values[1], values[2], values[3]),
                   ptx::pack_e4m3(values[4], values[5], values[6], values[7]));
    if (chunk == 0) {
      consumer.group.scales[(begin + block) * kTokens + row] =
          static_cast<uint16_t>(numerics::float_bits(scale) >> 16);
    }
  }
}

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
      int32_t* done =
          task.done + static_cast<int64_t>(token) * (params.hidden / kExpertTileRows) + item.part;
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

/// Adds the blocks of a shared up tile in their order, so that the bits are those of one chain.
__device__ __forceinline__ void add_parts(const Consumer& consumer,
                                          const BlockShared& shared,
                                          float (&sum)[kValues]) {
  const int row = consumer.thread / 32 * 16 + consumer.thread % 32 / 4;
  const int blocks = consumer.task.params.hidden / 128;
#pragma unroll 4
  for (int block = 0; block < blocks; ++block) {
    sum[0] += shared.parts[block][row];
    sum[2] += shared.parts[block][row + 8];
  }
}

/// An up item is one row tile, multiplied by this group or shared by the groups of the block (group
/// g takes pairs g, g + 4, ... and leaves each promoted product in `parts`). A down item is a run
/// of row tiles, once the unit's up tiles are complete. One loop serves all three. sum[r] as in
/// wgmma.cuh: tile row 16 * warp + lane / 4 + 8 * (r / 2), token 2 * (lane % 4) + r % 2.
template <bool kFp8, bool kWide>
__device__ __forceinline__ void run_item(Consumer& consumer,
                                         BlockShared& shared,
                                         const Item& item) {
  constexpr uint32_t kEveryone = 7;  // named barrier of all consumers
  const Task& task = consumer.task;
  const ExpertsParams& params = task.params;
  GroupShared& group = consumer.group;
  const bool down = item.kind == ItemKind::kDown;
  const bool share = item.kind == ItemKind::kSharedUp;
  const int blocks = (down ? params.width : params.hidden) / 128;
  const int stride = share ? kGroups : 1;
  int length = blocks;
  if (share) {
    const int pairs = (blocks + 1) / 2;
    const int mine = (pairs - consumer.index + kGroups - 1) / kGroups;
    const bool short_end = blocks % 2 != 0 && (pairs - 1) % kGroups == consumer.index;
    length = 2 * mine - (short_end ? 1 : 0);
  }
  const UpSupply supply(consumer, item.unit, stride, length);
  if (down) {
    if (consumer.thread == 0) {
      const int up_tiles = 2 * params.width / kExpertTileRows;
      ptx::wait_or_trap([&] { return ptx::load_acquire(task.ready + item.number) == up_tiles; });
    }
    consumer.sync();
  } else {
    supply.fetch(0);
    supply.load_scales(consumer, item.unit);
  }
  const uint64_t descriptor = ptx::k_major_descriptor(group.input);
  const auto descriptor_low = static_cast<uint32_t>(descriptor);
  const auto descriptor_high = static_cast<uint32_t>(descriptor >> 32);
  WeightReader<kFp8, kWide> reader{group, consumer.lane, consumer.stage, {}};
  const int first_tile = item.tile;
  float sum[kValues];
  for (int tile = first_tile; tile < first_tile + item.tiles; ++tile) {
    float pending[3][kValues];
    uint32_t leaf = 0;
    int leaf_left = params.leaf_blocks;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      sum[i] = 0.0F;
    }
    Weights weights;
    float part[kValues];
    const auto start = [&](int step) {
      reader.expand(weights);
      start_block(
          weights,
          descriptor_low + static_cast<uint32_t>(step) % kInputBlocks * (kTokenBlockBytes / 16),
          descriptor_high,
          part);
    };
    const auto finish = [&](int step) {
      const int block = share ? (step / 2 * kGroups + consumer.index) * 2 + step % 2 : step;
      const uint32_t scales =
          ptx::load_shared_4(consumer.lane.scales + static_cast<uint32_t>(block) * (kTokens * 2));
      finish_block(weights, part);
      const float left = ptx::low_bf16(scales);
      const float right = ptx::high_bf16(scales);
      sum[0] = fmaf(part[0], weights.scale[0] * left, sum[0]);
      sum[1] = fmaf(part[1], weights.scale[0] * right, sum[1]);
      sum[2] = fmaf(part[2], weights.scale[1] * left, sum[2]);
      sum[3] = fmaf(part[3], weights.scale[1] * right, sum[3]);
      if (share) {
        if (consumer.thread % 4 == 0) {
          const int row = consumer.thread / 32 * 16 + consumer.thread % 32 / 4;
          shared.parts[block][row] = sum[0];
          shared.parts[block][row + 8] = sum[2];
        }
        sum[0] = 0.0F;
        sum[2] = 0.0F;
      } else if (down && (--leaf_left == 0 || step + 1 == length)) {
        add_leaf(pending, leaf, step + 1 == length, sum);
        leaf_left = params.leaf_blocks;
        ++leaf;
      }
    };
    if (length > 0) {
      reader.fetch(true, length == 1);
    }
    const int held = down ? kInputBlocks : UpSupply::kAhead;  // blocks between two supplies
    for (int begin = 0; begin < length; begin += held) {
      if (!down) {
        supply.advance(consumer, begin);
      } else if (tile == first_tile || blocks > kInputBlocks) {
        if (begin > 0 || tile > first_tile) {
          consumer.sync();  // the products that read the old content are done
        }
        quantise_hidden(consumer, item, begin);
        ptx::fence_async_shared();
        consumer.sync();
      }
      const int end = min(begin + held, length);
#pragma unroll 1
      for (int step = begin; step < end; step += 2) {
        // The next block's codes are fetched while the tensor cores work.
        start(step);
        if (step + 1 == length) {
          finish(step);
          break;
        }
        reader.fetch(false, true);
        finish(step);
        start(step + 1);
        if (step + 2 == length) {
          finish(step + 1);
          break;
        }
        reader.fetch(true, step + 3 == length);
        finish(step + 1);
      }
    }
    if (down) {
      store_slots(consumer, item, tile, sum);
    }
  }
  if (down) {
    combine(consumer, item);
    return;
  }
  if (share) {
    ptx::named_barrier_sync(kEveryone, kGroups * 128);
    if (consumer.index != 0) {
      return;
    }
    add_parts(consumer, shared, sum);
  }
  store_hidden(consumer, item, kFp8 ? params.shared_limit : params.limit, sum);
  consumer.sync();
  if (consumer.thread == 0) {
    ptx::add_release(task.ready + item.number, 1);
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
    if (item.unit.expert == task.params.num_experts) {
      run_item<true, kWide>(consumer, shared, item);
    } else {
      run_item<false, kWide>(consumer, shared, item);
    }
    __syncwarp();
    if (consumer.thread % 32 == 0) {
      ptx::barrier_arrive(&group.read[place.place]);
    }
    place.advance();
  }
}

/// Brings the activations of the whole step to L2 while the lists are being read.
__device__ __forceinline__ void request_inputs(const ExpertsParams& params) {
  const int64_t at =
      (static_cast<int64_t>(blockIdx.x) * (kGroups * 128) + threadIdx.x) * 128;  // bytes
  const int64_t codes = static_cast<int64_t>(params.num_tokens) * params.hidden;
  if (at < codes) {
    ptx::prefetch_l2(params.x_codes + at);
  }
  if (at < codes / 128) {
    ptx::prefetch_l2(params.x_scales + at);
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
    request_inputs(task.params);
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
