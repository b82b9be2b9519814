#pragma once
// Writes trained parameters as a checkpoint in the published format: FP8 and FP4 matrices with
// UE8M0 scales, bf16 and float32 for the rest. Any thread.
//
//   write_published(trainer.exact(), "/tmp/abacus-model");

#include <filesystem>

#include "model/parameters.h"

namespace baleen::abacus {

/// `params` are unrounded. The folder gets model.safetensors and config.json; throws
/// CheckpointError when a model is there already.
void write_published(const model::ModelParameters& params, const std::filesystem::path& folder);

}  // namespace baleen::abacus
