#pragma once
// Published weights into the form that a decode pass reads: packed, in device memory. Start-up
// only.
//
//   DecodeWeights weights = load_decode_weights(checkpoint, {.plain = plain, .compressed = yarn});
//   add_empty_pools(weights, {.max_requests = 2, .full_pages = 20, .window_pages = 20});

#include <cstdint>
#include <optional>
#include <vector>

#include "runner/decode/decode_memory.h"
#include "runner/decode/decode_model.h"
#include "weights/checkpoint.h"

namespace baleen::runner {

/// Radians per position of the 32 rotated pairs.
struct DecodeFrequencies {
  std::vector<double> plain;       // window layers
  std::vector<double> compressed;  // the others
};

struct DecodeWeights {
  DecodeMemory memory;
  DecodeModel model;
  std::optional<DecodeModel> draft;  // shares embedding, head and frequencies with `model`
};

/// Throws ConfigError when the kernels do not cover the shape, CheckpointError naming a tensor
/// whose stored format they do not read. `with_draft`: the draft layer too, which the checkpoint
/// then must have been opened with.
DecodeWeights load_decode_weights(const weights::Checkpoint& checkpoint,
                                  const DecodeFrequencies& frequencies,
                                  bool with_draft = false);

struct DecodePoolSizes {
  int32_t max_requests = 1;
  int64_t full_pages = 0;    // with the sink, page 0
  int64_t window_pages = 0;  // the same
  int32_t c4_ring = 16;      // rows per window page
  int32_t c128_ring = 136;   // rows per request
};

/// Zeroed pools and rings for every layer.
void add_empty_pools(DecodeWeights& weights, const DecodePoolSizes& sizes);

}  // namespace baleen::runner
