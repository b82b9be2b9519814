#pragma once
// The batch of a rollout, and where the run stood in its data behind it, as bytes: for the step
// journal and for checkpoints. Numbers as the machine has them; a checksum closes the bytes. Pure.
//
//   std::string bytes = encode_batch(batch, data);
//   auto [batch, data] = decode_batch(bytes, "rollout_12.bin");

#include <string>
#include <utility>

#include "rl/rollout_manager.h"
#include "rl/rollout_sample.h"

namespace baleen::rl {

struct DecodedBatch {
  RolloutBatch batch;
  DataState data;
};

std::string encode_batch(const RolloutBatch& batch, const DataState& data);
/// Throws CheckpointError naming `where` when the bytes are cut, damaged or of another format.
DecodedBatch decode_batch(const std::string& bytes, const std::string& where);

}  // namespace baleen::rl
