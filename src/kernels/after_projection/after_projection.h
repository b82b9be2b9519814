#pragma once
// Everything between the projections of a layer's input and the next products, for decode and
// verify steps, in one launch with roles by block index:
//   latent   q latent: RMSNorm, bf16, e4m3 in blocks of 128 for wq_b and the indexer's wq_b
//   kv       RMSNorm, rotation, e4m3 blocks of 64, the 584-byte row into the window pool
//   main     the compressor: rows into its ring; a completed group is pooled, finished and stored
//   index    the same for the index compressor (ratio 4), with Hadamard and E2M1 values
//   weights  index head weights times a constant
//
//   AfterProjectionParams p{.num_tokens = 4, .latent = {...}, .kv = {...}};
//   p.main = {.kind = CompressorKind::kC4, ...};          // as compressor_pool.h, plan included
//   kernels::after_projection_sm90(p, stream);
//
// A role whose inputs are null is left out (a window layer has latent and kv alone). Rows of tokens
// of this pass are read from the projection's output, older ones from the ring; ring writes happen
// in the same launch, so a request may have at most ring_size - window + 1 tokens in the pass
// (window 8 or 128): then no write meets a row that is still read. Slots and destinations below 0
// mean "nothing". Bits of a token or entry depend on its rows alone. The portable form gives the
// same bits. Orders: kv and entries as cache_entry.cuh and compressor_pool.h say. Square sum of the
// latent: lane l of a warp holds elements 256 c + 8 l ..: a tree over the eight, chunks c
// ascending, lanes as a tree. Errors: shapes outside supports are a programmer's error (checked).
// Sync: none; capture-safe; no workspace; zero tokens are legal. Oracles: rms_norm, cache_entry and
// compressor_pool.

#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/compressor_pool/compressor_pool.h"

namespace baleen::kernels {

inline constexpr int32_t kIndexHeads = 64;
inline constexpr int32_t kLatentQuantDims = 128;

struct LatentRole {
  const uint16_t* rows = nullptr;  // bf16 [num_tokens, stride], 16-byte aligned; null: no role
  int64_t stride = 0;              // elements, a multiple of 8
  int32_t width = 0;               // 1024 or 1536
  const float* weight = nullptr;   // f32 [width]
  uint8_t* codes = nullptr;        // e4m3 [num_tokens, width], out
  uint8_t* scales = nullptr;       // UE8M0 [num_tokens, width / 128], out
  uint16_t* normalised = nullptr;  // bf16 [num_tokens, width], out; null: not written
};

struct KvRole {
  const uint16_t* rows = nullptr;      // bf16 [num_tokens, stride], 16-byte aligned; null: no role
  int64_t stride = 0;                  // elements, a multiple of 8
  const float* weight = nullptr;       // f32 [512]
  const float* frequencies = nullptr;  // f32 [32], the layer's table
  const int32_t* positions = nullptr;  // i32 [num_tokens]
  const int32_t* slots = nullptr;      // i32 [num_tokens], rows of the window pool or -1
  KvPoolView pool = {};                // out
};

struct IndexWeightsRole {
  const uint16_t* rows = nullptr;  // bf16 [num_tokens, stride]; null: no role
  int64_t stride = 0;              // elements, even
  float constant = 0.0F;           // 128^-1/2 * 64^-1/2
  float* out = nullptr;            // f32 [num_tokens, 64], bf16 values
};

struct AfterProjectionParams {
  int32_t num_tokens = 0;
  float eps = 0.0F;  // of the norms of latent and kv
  LatentRole latent;
  KvRole kv;
  IndexWeightsRole index_weights;
  CompressorPoolParams main;        // plan null: no role; kind kC4 or kC128
  CompressorRingParams main_ring;   // writes null: no role; the same kind
  CompressorPoolParams index;       // plan null: no role; kind kIndex
  CompressorRingParams index_ring;  // writes null: no role
  uint32_t* nan_rows = nullptr;     // u32 [1], counts latent and kv rows with a NaN; may be null
  bool programmatic = false;        // launch as a programmatic dependent: norm weights and
                                    // frequencies are read before the predecessor has ended
};

void after_projection_sm90(const AfterProjectionParams& params, device::StreamHandle stream);
void after_projection_portable(const AfterProjectionParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
