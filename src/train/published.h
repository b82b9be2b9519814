#pragma once
// Trained parameters as a checkpoint folder in the published format, which serving reads. Any
// thread.
//
//   write_published(masters.values(), "out/model", published_format(masters.values(), rounded));
//   export_model(masters.values(), rounded, "models/abacus", "out/model");  // with the tokenizer

#include <filesystem>
#include <string>

#include "model/parameters.h"
#include "weights/parameter_codec.h"
#include "weights/tensor_inventory.h"

namespace baleen::train {

/// The formats that the matrices are served in, where `rounded`; else float32 throughout.
weights::CheckpointFormat published_format(const model::ModelParameters& params, bool rounded);

/// The bytes of one published tensor, rounded once from float or double; the one function behind
/// files and streams.
weights::EncodedParameter encode_published(const at::Tensor& value,
                                           const weights::Parameter& parameter,
                                           weights::WeightFormat format);

/// `params`: unrounded values, float or double. Writes model.safetensors (or shards) and
/// config.json; throws CheckpointError when a model is there already, SystemError when the disk
/// refuses.
void write_published(const model::ModelParameters& params,
                     const std::filesystem::path& folder,
                     const weights::CheckpointFormat& format);

/// The tokenizer's files of a model's folder; none where `source` is empty.
void copy_tokenizer(const std::filesystem::path& source, const std::filesystem::path& target);

/// Refused before the first step, not after the last. Throws ConfigError where `target` has a
/// model; an empty name is none.
void check_export_folder(const std::string& target);

/// A folder that `baleen serve` reads, which appears as a whole: unrounded `values` in
/// published_format(), and the tokenizer's files of `source` (empty: there are none).
void export_model(const model::ModelParameters& values,
                  bool rounded,
                  const std::filesystem::path& source,
                  const std::filesystem::path& target);

}  // namespace baleen::train
