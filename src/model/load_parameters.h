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
ModelParameters load_parameters(const weights::Checkpoint& checkpoint,
                                const at::TensorOptions& options);

/// Opens the folder, MTP blocks only where `with_mtp`. Throws Error naming file, tensor or key.
ModelParameters load_parameters(const std::filesystem::path& folder,
                                const at::TensorOptions& options,
                                bool with_mtp);

}  // namespace baleen::model
