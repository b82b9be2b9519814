#pragma once
// Parameters out of a checkpoint: dequantised exactly into the compute dtype, experts stacked, with
// the format each matrix was stored in (it decides how activations are rounded).
//
//   ModelParameters params = load_parameters("models/abacus", at::TensorOptions(at::kFloat));

#include <cstddef>
#include <filesystem>
#include <string>

#include <ATen/core/Tensor.h>

#include "model/parameters.h"
#include "weights/checkpoint.h"

namespace baleen::model {

/// `options`: float or double, any device. Throws CheckpointError when the experts of a layer are
/// stored in different formats. MTP blocks that the checkpoint was opened without are left out.
/// Without `layers` main and MTP blocks know their formats and hash tables and nothing else.
ModelParameters load_parameters(const weights::Checkpoint& checkpoint,
                                const at::TensorOptions& options,
                                bool layers = true);

/// Fills one layer (the beginning of its tensors' names) of parameters that were loaded without
/// layers, and empties it again.
void load_layer(const weights::Checkpoint& checkpoint,
                const at::TensorOptions& options,
                const std::string& layer,
                ModelParameters& params);
void drop_layer(const std::string& layer, ModelParameters& params);
std::string main_layer(std::size_t block);
inline const std::string kDraftLayer = "mtp.0.";

/// Opens the folder, MTP blocks only where `with_mtp`. Throws Error naming file, tensor or key.
ModelParameters load_parameters(const std::filesystem::path& folder,
                                const at::TensorOptions& options,
                                bool with_mtp);

}  // namespace baleen::model
