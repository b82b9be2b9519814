#pragma once
// Activations of an item on their way to the tensor cores' tile in shared memory: rows of x for the
// up product, hidden rows (quantised on the way) for the down product. Used by experts_sm90.cu.

#include <cstdint>

#include "kernels/experts/expert_product.cuh"
#include "kernels/experts/expert_work.cuh"
#include "kernels/experts/quantise_eight.cuh"
#include "kernels/ptx/arriving_words.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/role_registers.cuh"
#include "kernels/ptx/shared_access.cuh"
#include "numerics/block_scale.h"

namespace baleen::kernels::experts {

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

/// Streams the e4m3 rows of an up item into shared memory, half a tile ahead. A thread copies two
/// pieces of 16 bytes of each half.
template <int kRows>
struct UpSupply {
  static constexpr int kAhead = InputTile<kRows>::kBlocks / 2;  // blocks between calls of advance
  static constexpr int kChunks = kAhead * 8;                    // of a row, in a half
  static_assert(kChunks * kRows == 256, "two pieces per thread");
  const Consumer& consumer;
  const ExpertUnit& unit;
  InputTile<kRows> tile;
  int begin;   // first block of this item
  int length;  // its blocks

  __device__ __forceinline__ void fetch(int step) const {
    const ExpertsParams& params = consumer.task.params;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int piece = consumer.thread + 128 * pair;
      const int row = piece / kChunks;
      const int chunk = step * 8 + piece % kChunks;
      if (row < unit.count && chunk < length * 8) {
        const int64_t token = unit.entries[row] / params.slots;
        ptx::async_copy_16_to(
            tile.place(chunk % (2 * kChunks), row),
            params.x_codes + token * params.hidden + begin * kExpertBlockInputs + chunk * 16,
            16);
      }
    }
    ptx::async_copy_commit();
  }

  __device__ __forceinline__ void load_scales() const {
    const ExpertsParams& params = consumer.task.params;
    const int blocks = params.hidden / kExpertBlockInputs;
    const int row = consumer.thread % kTokens;
    if (row < unit.count) {
      const uint8_t* codes =
          params.x_scales + static_cast<int64_t>(unit.entries[row] / params.slots) * blocks;
#pragma unroll 2
      for (int block = begin + consumer.thread / kTokens; block < begin + length;
           block += 128 / kTokens) {
        const float scale = numerics::ue8m0_to_float(__ldg(codes + block));
        consumer.group.scales[block * kTokens + row] =
            static_cast<uint16_t>(numerics::float_bits(scale) >> 16);
      }
    }
  }

  /// Before step % kAhead == 0 of a tile; `more`: another one follows.
  __device__ __forceinline__ void advance(int step, bool more) const {
    ptx::async_copy_wait<0>();
    ptx::fence_async_shared();
    consumer.sync();  // also: everybody has finished with the other half
    if (step + kAhead < length) {
      fetch(step + kAhead);
    } else if (more) {
      fetch(0);
    }
  }
};

/// Quantises the hidden rows of a down item to e4m3 per 128 inputs, blocks [begin, begin + 8).
template <int kRows, bool kWords>
__device__ __forceinline__ void quantise_hidden(const Consumer& consumer,
                                                const Item& item,
                                                const InputTile<kRows>& tile,
                                                int begin) {
  constexpr int kAtOnce = 8;
  const int width = consumer.task.params.width;
  const int held = min(kAtOnce, width / 128 - begin);
  // Sixteen lanes share a block of a row, eight values each.
  const int row_threads = held * 16;
  const int rows = 128 / row_threads;  // in one pass
  const int block = consumer.thread % row_threads / 16;
  const int chunk = consumer.thread % 16;
  int row = consumer.thread / row_threads;
  row = row < rows ? row : kTokens;
  const auto request = [](const uint16_t* from) {
    if constexpr (kWords) {
      return ptx::load_words(from);
    } else {
      return __ldcg(reinterpret_cast<const uint4*>(from));
    }
  };
  const uint16_t* source = (kWords ? consumer.task.hidden_words : consumer.task.hidden_rows) +
                           static_cast<int64_t>(item.unit.begin + row) * width +
                           (begin + block) * 128 + chunk * 8;
  const int count = item.unit.count;
  uint4 packed = make_uint4(0, 0, 0, 0);
  if (row < count) {
    packed = request(source);
  }
#pragma unroll 1
  for (; row < count; row += rows) {  // the sixteen lanes go together
    if constexpr (kWords) {
      ptx::wait_or_leave([&] {
        if (ptx::has_no_zero(packed)) {
          return true;
        }
        packed = ptx::load_words(source);
        return false;
      });
    }
    const uint4 eight = packed;
    source += static_cast<int64_t>(rows) * width;
    if (row + rows < count) {
      packed = request(source);
    }
    const QuantisedEight quantised = quantise_eight(eight, consumer.thread);
    const int chunk_16 = (begin + block) % InputTile<kRows>::kBlocks * 8 + chunk / 2;
    ptx::store_shared_8(tile.place(chunk_16, row) + static_cast<uint32_t>(chunk % 2 * 8),
                        quantised.codes);
    if (chunk == 0) {
      consumer.group.scales[(begin + block) * kTokens + row] =
          static_cast<uint16_t>(numerics::float_bits(quantised.scale) >> 16);
    }
  }
}

}  // namespace baleen::kernels::experts
