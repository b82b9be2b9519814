#pragma once
// One warp group multiplies a tile of 64 packed weight rows with up to 32 tokens.
// Operands and order of every sum are those of kernels/experts: FP4 codes are moved in registers to
// the places of an e4m3 operand, four tensor instructions per block of 128 inputs start from zero
// and are scaled each by its group's exponent (FP8: one chain), the block is promoted with the
// token's exponent, blocks join in leaves, leaves in a balanced tree. Used by
// experts_prompt_sm90.cu.

#include <cstdint>

#include "kernels/experts/expert_tiles.h"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/opaque.cuh"
#include "kernels/ptx/shared_access.cuh"
#include "kernels/ptx/shared_store.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baleen::kernels::experts_prompt {

/// A lane's part of a block of weights as it lies in shared memory.
template <bool kFp8>
struct RawBlock {
  uint4 codes[kFp8 ? 4 : 2];
  uint2 words;  // exponents of the lane's two rows

  __device__ __forceinline__ void load(uint32_t lane_codes, uint32_t lane_words) {
#pragma unroll
    for (uint32_t i = 0; i < (kFp8 ? 4 : 2); ++i) {
      codes[i] = ptx::load_shared_16(lane_codes + i * 2048);
    }
    words = ptx::load_shared_8(lane_words);
  }
};

/// The register operand of four instructions.
struct Operand {
  uint32_t a[4][4];

  __device__ __forceinline__ void set(const RawBlock<false>& raw) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      expand_word(raw.codes[i].x, a[2 * i][0], a[2 * i][2]);
      expand_word(raw.codes[i].y, a[2 * i][1], a[2 * i][3]);
      expand_word(raw.codes[i].z, a[2 * i + 1][0], a[2 * i + 1][2]);
      expand_word(raw.codes[i].w, a[2 * i + 1][1], a[2 * i + 1][3]);
    }
  }
  __device__ __forceinline__ void set(const RawBlock<true>& raw) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      a[j][0] = raw.codes[j].x;
      a[j][1] = raw.codes[j].y;
      a[j][2] = raw.codes[j].z;
      a[j][3] = raw.codes[j].w;
    }
  }
  __device__ __forceinline__ void pin() {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        ptx::keep_in_register(a[j][r]);
      }
    }
  }
};

inline constexpr int kMostColumns = 32;
inline constexpr uint32_t kLeafLevels = 3;  // of the tree: up to eight leaves
// Waiting leaves of a warp group: [level][value][thread] floats.
inline constexpr uint32_t kValueBytes = 128 * 4;
inline constexpr uint32_t kLevelBytes = kMostColumns / 2 * kValueBytes;
inline constexpr uint32_t kPendingBytes = kLeafLevels * kLevelBytes;

template <bool kFp8, int kColumns>
struct Product {
  static constexpr int kValues = kColumns / 2;  // accumulators of a lane
  static constexpr int kParts = kFp8 ? 1 : 4;

  float parts[kParts][kValues];
  float sum[kValues];
  Operand operand;
  float upper[kParts];  // what the parts of the lane's two rows are multiplied with
  float lower[kParts];
  uint32_t token_scales[kColumns / 8];
  uint32_t loaded;
  uint32_t pending;  // shared address of this lane's waiting leaves

  /// Brings everything to registers that finish() wants of the block: the compiler takes the
  /// operand for dead as soon as the instructions are issued, and whatever is loaded or computed
  /// before they are done may land in its registers. `scales`: shared address of the tokens' bf16
  /// scales, from this lane's first column on.
  __device__ __forceinline__ void prepare(const RawBlock<kFp8>& raw, uint32_t scales) {
    operand.set(raw);
#pragma unroll
    for (uint32_t c = 0; c < kColumns / 8; ++c) {
      token_scales[c] = ptx::load_shared_4(scales + c * 16);
    }
    loaded = raw.words.x;
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c) {
      loaded &= token_scales[c];
    }
    ptx::keep_in_register(loaded);
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      upper[j] = kFp8 ? block_scale(raw.words.x) : group_scale(raw.words.x, j);
      lower[j] = kFp8 ? block_scale(raw.words.y) : group_scale(raw.words.y, j);
    }
    ptx::pin_registers(upper);
    ptx::pin_registers(lower);
  }

  /// `tokens`: shared address of the block's tokens. Nothing may come between this and finish().
  __device__ __forceinline__ void start(uint32_t tokens) {
    const uint64_t descriptor = ptx::make_descriptor(tokens, 128, 1024, ptx::Swizzle::kNone);
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      ptx::pin_registers(parts[j]);
    }
    operand.pin();  // ready before the fence, not when its instruction comes
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      ptx::Wgmma<ptx::E4m3, kColumns>::registers(parts[kFp8 ? 0 : j],
                                                 operand.a[j],
                                                 ptx::advance_descriptor(descriptor, 256 * j),
                                                 kFp8 ? static_cast<int>(j) : 0);
    }
    ptx::wgmma_commit();
  }

  /// Waits for the block and adds it. Returns the bitwise and of what was loaded for it: never all
  /// ones, because the words of exponents are not, and not known before the loads have returned.
  __device__ __forceinline__ uint32_t finish() {
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      ptx::pin_registers(parts[j]);
    }
    operand.pin();  // it is read until here
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      float block = parts[0][i] * (i % 4 < 2 ? upper[0] : lower[0]);  // exact
#pragma unroll
      for (int j = 1; j < kParts; ++j) {
        block = fmaf(parts[j][i], i % 4 < 2 ? upper[j] : lower[j], block);
      }
      const uint32_t pair = token_scales[i / 4];
      sum[i] = fmaf(block, i % 2 == 0 ? ptx::low_bf16(pair) : ptx::high_bf16(pair), sum[i]);
    }
    return loaded;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      sum[i] = 0.0F;
    }
  }

  /// Leaf l waits at the level of its trailing ones; the last one meets all that wait.
  __device__ __forceinline__ void add_leaf(uint32_t leaf, bool last) {
    bool carry = true;
#pragma unroll 1
    for (uint32_t level = 0; level < kLeafLevels; ++level) {
      const uint32_t place = pending + level * kLevelBytes;
      if (((leaf >> level) & 1U) != 0) {
        if (carry || last) {
#pragma unroll
          for (int i = 0; i < kValues; ++i) {
            sum[i] = __uint_as_float(
                         ptx::load_shared_4(place + static_cast<uint32_t>(i) * kValueBytes)) +
                     sum[i];
          }
        }
      } else {
        if (carry && !last) {
#pragma unroll
          for (int i = 0; i < kValues; ++i) {
            ptx::store_shared_4(place + static_cast<uint32_t>(i) * kValueBytes,
                                __float_as_uint(sum[i]));
          }
        }
        carry = false;
      }
    }
    if (!last) {
      clear();
    }
  }
};

}  // namespace baleen::kernels::experts_prompt
