#pragma once
// Writes trained parameters as a checkpoint in the published format: FP8 and FP4 matrices with
// UE8M0 scales, bf16 and float32 for the rest, one model.safetensors. Any thread.
//
//   write_published(params, "models/abacus/model.safetensors");

#include <filesystem>

#include "model/parameters.h"

namespace baleen::abacus {

/// `params` are unrounded; matrices go to the format that they name.
void write_published(const model::ModelParameters& params, const std::filesystem::path& file);

}  // namespace baleen::abacus
