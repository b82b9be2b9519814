#pragma once
// Parameters out of a checkpoint: dequantised exactly into the compute dtype, experts stacked, with
// the format each matrix was stored in (it decides how activations are rounded).
//
//   ModelParameters params = load_parameters("models/abacus", at::TensorOptions(at::kFloat));

#include <filesystem>

#include <ATen/core/Tensor.h>

#include "model/parameters.h"
#include "weights/checkpoint.h"

namespace baleen::model {

/// `options`: float or double, any device. Throws CheckpointError when the experts of a layer are
/// stored in different formats. MTP blocks that the checkpoint was opened without are left out.
/// Without `main_layers` the blocks know their formats and hash tables and nothing else.
ModelParameters load_parameters(const weights::Checkpoint& checkpoint,
                                const at::TensorOptions& options,
                                bool main_layers = true);

/// Fills one block of parameters that were loaded without main layers, and empties it again.
void load_block(const weights::Checkpoint& checkpoint,
                const at::TensorOptions& options,
                std::size_t block,
                ModelParameters& params);
void drop_block(std::size_t block, ModelParameters& params);

/// Opens the folder, MTP blocks only where `with_mtp`. Throws Error naming file, tensor or key.
ModelParameters load_parameters(const std::filesystem::path& folder,
                                const at::TensorOptions& options,
                                bool with_mtp);

}  // namespace baleen::model
