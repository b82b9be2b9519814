#pragma once
// A step of one token: a cluster of sixteen blocks takes one entry of its list (an expert with the
// token's weight for it). Up tiles and down tiles of the expert are dealt over the blocks; the four
// consumer warp groups of a block take a leaf of every up tile and whole down tiles, in the order
// of sums of the persistent form. Hidden rows do not go through memory: the block that has a
// channel pushes it to all blocks of the cluster, and each quantises the whole row itself. A
// group's ring holds 52 KB, so that all weights of an expert of up to 512 channels are asked for at
// once.
//
// Here: what the roles share. Used by experts_solo_sm90.cu.

#include <cstdint>

#include "kernels/experts/expert_work.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace baleen::kernels::experts::solo {

inline constexpr int kCluster = 16;
inline constexpr int kThreads = kGroups * 128 + 128;  // consumers; producer, finisher, idle
inline constexpr int kConsumerRegisters = 104;
inline constexpr int kOtherRegisters = 64;
inline constexpr int kRing = 6;
inline constexpr int kMostWidth = 2048;
inline constexpr int kMostLeaf = kMaxBlocks / kUpLeaves;  // blocks of an up product's leaf

struct alignas(128) Group {
  uint8_t weights[kRing][kStageBytes];
  uint8_t x[kMostLeaf * kExpertBlockInputs];
  uint8_t row[kMostWidth];  // quantised hidden row; the instruction reads a little beyond
  float x_scales[16];
  float row_scales[kMostWidth / kExpertBlockInputs];
  ptx::Barrier full[kRing];
  ptx::Barrier empty[kRing];
  ptx::Barrier x_full;
};
static_assert(kMostLeaf <= 16);

struct Shared {
  Group groups[kGroups];
  alignas(16) uint16_t inbox[kMostWidth];  // bf16 hidden row, from all blocks of the cluster
  alignas(16) uint16_t outbox[kExpertTileRows / 2];
  float leaves[2][kUpLeaves][kExpertTileRows];
  ptx::Barrier leaves_full[2];
  ptx::Barrier leaves_read[2];
  ptx::Barrier inbox_full;
};
static_assert(sizeof(Shared) <= 227 * 1024);

/// What the host knows, the same for all blocks.
struct Plan {
  int32_t up_tiles;
  int32_t up_blocks;  // of an up tile
  int32_t leaf;       // blocks of a leaf of the up product
  int32_t leaves;
  int32_t down_tiles;
  int32_t down_blocks;  // of a down tile
};

struct Task {
  ExpertsParams params;
  Plan plan;
  int32_t* done;  // [hidden / 16]: experts that stored these rows
  uint16_t* hidden_rows;
  void* slot_rows;
};

/// Which entry of the token's list a cluster has.
struct Entry {
  int32_t expert = -1;  // none
  int32_t slot = 0;
  float weight = 0.0F;
};

/// What is asked for before the block's barrier: as a rule each entry is a unit of its own.
struct EntryGuess {
  int4 head;  // of unit number `place`
  int32_t slot;
  float weight;
  int32_t num_units;
};

__device__ __forceinline__ EntryGuess request_entry(const ExpertLists& lists, int32_t place) {
  const ExpertUnit* unit = lists.units + place;
  return {__ldcg(reinterpret_cast<const int4*>(unit)),
          __ldcg(&unit->entries[0]),
          __ldcg(&unit->weights[0]),
          __ldcg(lists.num_units)};
}

/// Entry number `place` of the list.
__device__ __forceinline__ Entry find_entry(const ExpertLists& lists,
                                            int32_t place,
                                            const EntryGuess& guess) {
  if (place < guess.num_units && guess.head.y == place && guess.head.z == 1) {
    return {guess.head.x, guess.slot, guess.weight};
  }
  Entry entry;
  for (int32_t u = 0; u < guess.num_units; ++u) {
    const int4 unit = __ldcg(reinterpret_cast<const int4*>(lists.units + u));
    const int32_t rank = place - unit.y;
    if (rank >= 0 && rank < unit.z) {
      entry.expert = unit.x;
      entry.slot = __ldcg(&lists.units[u].entries[rank]);
      entry.weight = __ldcg(&lists.units[u].weights[rank]);
    }
  }
  return entry;
}

/// How an expert's work is dealt.
struct Deal {
  const Plan& plan;
  int32_t first_down;  // of this block's down tiles
  int32_t end_down;

  __device__ __forceinline__ Deal(const Plan& of, int32_t rank)
      : plan(of),
        first_down(rank * of.down_tiles / kCluster),
        end_down((rank + 1) * of.down_tiles / kCluster) {}
  /// Blocks of group `group`'s leaf.
  __device__ __forceinline__ int32_t length(int32_t group) const {
    return max(0, min(plan.leaf, plan.up_blocks - group * plan.leaf));
  }
};

}  // namespace baleen::kernels::experts::solo
