#pragma once
// The weight ring of the linear kernel: how a block's dynamic shared memory is
// laid out, which item and which stretch of inputs each ring stage holds, and
// the one thread that requests the copies. Included by linear_body.cuh.

#include <cstdint>

#include "kernels/linear/linear_device.h"
#include "kernels/linear/linear_layout.h"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/tensor_copy.cuh"

namespace baleen::kernels::linear_body {

inline constexpr uint32_t kConsumerBarrier = 1;
inline constexpr uint32_t kReadyBarrier = 2;
inline constexpr uint32_t kRequestedBarrier = 3;

template <int kTokens, int kRowTiles>
struct Tile {
  static_assert(kTokens % 8 == 0 && kTokens <= 64 && (kRowTiles == 1 || kRowTiles == 2));
  static constexpr int kConsumers = 128 * kRowTiles;  // a warp group per 64-row tile
  static constexpr int kThreads = kConsumers + 32;    // and the warp of the producer
  static constexpr int kConsumerWarps = kConsumers / 32;
  static constexpr int kAccumulators = kTokens / 2;            // per thread
  static constexpr int kTilesPerStage = 2 / kRowTiles;         // along the inputs
  static constexpr int kChunkBytes = kTokens * kTileRowBytes;  // 128 bytes of each token's x
  static constexpr bool kResident = x_is_resident(kTokens);
  static constexpr int kStageBytes = ring_stage_bytes(kTokens);
  static constexpr int kEntries = kRowTiles * 32;  // float4 of one token pair
  static constexpr int kPairs = kTokens / 2;
};

/// Places in dynamic shared memory; offsets are multiples of 16.
template <class T>
struct Arena {
  uint8_t* base;
  uint8_t* resident_x;    // [chunk of 128 bytes][token][128 bytes], 128-byte swizzle
  float4* reduction;      // [source block][owned pair][entry]
  float* x_scales;        // [block of 128 inputs][token]
  float* weight_scales;   // [2][block of 128 inputs]
  ptx::Barrier* full;     // [stages]
  ptx::Barrier* empty;    // [stages]
  ptx::Barrier* reduced;  // partial sums of all blocks of the cluster have come
  ptx::Barrier* drained;  // all blocks have read the partial sums of the item before
  float* exchange;        // 16 floats

  __device__ Arena(uint8_t* shared, const LinearDeviceParams& params, int tokens) {
    base = shared;
    resident_x = shared + params.x_offset;
    reduction = reinterpret_cast<float4*>(shared + params.reduction_offset);
    exchange = reinterpret_cast<float*>(shared + params.barrier_offset);
    full = reinterpret_cast<ptx::Barrier*>(shared + params.barrier_offset + 64);
    empty = full + kMaxRingStages;
    reduced = empty + kMaxRingStages;
    drained = reduced + 1;
    x_scales = reinterpret_cast<float*>(shared + params.scale_offset);
    weight_scales = x_scales + params.scale_blocks * tokens;
  }
  __device__ uint8_t* weights(int slot) const { return base + slot * T::kStageBytes; }
  /// x of a ring stage: beside its weights, or from chunk `chunk` of the item.
  __device__ uint8_t* x(int slot, int chunk) const {
    return T::kResident ? resident_x + chunk * T::kChunkBytes : weights(slot) + 2 * kTileBytes;
  }
};

struct Item {
  int task;
  int row_block;
  int token_tile;
};

__device__ __forceinline__ Item find_item(const LinearDeviceParams& params, int index) {
  Item item = {0, index, 0};
  while (item.task + 1 < params.num_tasks && index >= params.tasks[item.task + 1].item_begin) {
    ++item.task;
  }
  item.row_block = index - params.tasks[item.task].item_begin;
  if (params.token_tiles > 1) {
    item.token_tile = item.row_block % params.token_tiles;
    item.row_block /= params.token_tiles;
  }
  return item;
}

/// 128-byte chunks of x that meet one weight tile.
__device__ __forceinline__ int x_chunks_per_tile(WeightFormat format) {
  return format == WeightFormat::kE4m3AsBf16 ? 2 : 1;
}

/// Feeds the ring, one thread. The first ring's weights are requested at once, each as soon as its
/// own barrier is ready (preparing them all first would cost half a microsecond). Where x goes
/// through the ring, it follows when the predecessor has ended.
template <class T, int kTokens, int kRowTiles>
class Producer {
 public:
  __device__ Producer(const LinearDeviceParams& params,
                      const CUtensorMap* x_maps,
                      const Arena<T>& arena,
                      int cluster,
                      int rank)
      : params_(params),
        x_maps_(x_maps),
        arena_(arena),
        cluster_(cluster),
        rank_(rank),
        stages_(params.stages) {}

  /// Weights of stages `begin` to `end` of the first ring.
  __device__ void first_ring(int begin, int end) { walk<Pass::kFirstWeights>(begin, end); }
  __device__ void first_x() {
    if constexpr (!T::kResident) {
      ptx::wait_for_predecessor();
      walk<Pass::kFirstX>(0, stages_);
    }
  }
  /// When the consumers have prepared the `empty` barriers.
  __device__ void rest() { walk<Pass::kRest>(stages_, 1 << 30); }

 private:
  enum class Pass { kFirstWeights, kFirstX, kRest };

  /// Goes through this block's stages in order and requests what the pass asks for from stage
  /// `begin` to `end`.
  template <Pass kPass>
  __device__ __forceinline__ void walk(int begin, int end) {
    int slot = 0;
    uint32_t parity = 1;  // of `empty` in the first round
    int visited = 0;
    for (int index = cluster_; index < params_.num_items; index += params_.num_clusters) {
      const Item item = find_item(params_, index);
      const LinearDeviceTask& task = params_.tasks[item.task];
      const int64_t row_bytes = static_cast<int64_t>(task.tiles_per_row) * kTileBytes;
      const int tiles_per_leaf = task.tiles_per_leaf;
      const int leaves = task.leaves_per_block;
      int tile = rank_ * leaves * tiles_per_leaf;
      const uint8_t* source = task.weight +
                              static_cast<int64_t>(item.row_block) * kRowTiles * row_bytes +
                              static_cast<int64_t>(tile) * kTileBytes;
      for (int leaf = 0; leaf < leaves; ++leaf) {
        for (int left = tiles_per_leaf; left > 0; left -= T::kTilesPerStage) {
          const int tiles = min(left, T::kTilesPerStage);
          const uint32_t bytes = static_cast<uint32_t>(tiles) * kTileBytes;
          if (visited == end) {
            return;
          }
          if (visited < begin) {
            // done by an earlier pass
          } else if constexpr (kPass == Pass::kFirstWeights) {
            ptx::barrier_init(&arena_.full[slot], 1);
            ptx::fence_barrier_init();
            request_weights(task, source, row_bytes, bytes, slot);
          } else if constexpr (kPass == Pass::kFirstX) {
            request_x(task, item, tile, slot);
          } else {
            ptx::barrier_wait(&arena_.empty[slot], parity);
            request_weights(task, source, row_bytes, bytes, slot);
            if constexpr (!T::kResident) {
              request_x(task, item, tile, slot);
            }
          }
          source += bytes;
          tile += tiles;
          ++visited;
          if (++slot == stages_) {
            slot = 0;
            parity ^= 1;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void request_weights(const LinearDeviceTask& task,
                                                  const uint8_t* source,
                                                  int64_t row_bytes,
                                                  uint32_t bytes,
                                                  int slot) const {
    const int x_bytes =
        T::kResident ? 0 : x_chunks_per_tile(task.format) * T::kTilesPerStage * T::kChunkBytes;
    ptx::barrier_expect_bytes(&arena_.full[slot],
                              kRowTiles * bytes + static_cast<uint32_t>(x_bytes));
#pragma unroll
    for (int part = 0; part < kRowTiles; ++part) {
      ptx::bulk_load(arena_.weights(slot) + part * kTileBytes,
                     source + part * row_bytes,
                     bytes,
                     &arena_.full[slot],
                     ptx::kEvictFirst);
    }
  }

  __device__ __forceinline__ void request_x(const LinearDeviceTask& task,
                                            const Item& item,
                                            int tile,
                                            int slot) const {
    const int group = item.row_block / task.row_blocks_per_group;
    ptx::tensor_load_3d(arena_.x(slot, 0),
                        &x_maps_[item.task],
                        0,
                        item.token_tile * kTokens,
                        group * task.x_chunks_per_group + tile * x_chunks_per_tile(task.format),
                        &arena_.full[slot]);
  }

  const LinearDeviceParams& params_;
  const CUtensorMap* x_maps_;
  const Arena<T>& arena_;
  const int cluster_;
  const int rank_;
  const int stages_;
};

}  // namespace baleen::kernels::linear_body
