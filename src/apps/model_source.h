#pragma once
// Flags that several commands read the same way: which model shape, which weight format.

#include <string>
#include <vector>

#include "base/model_config.h"
#include "weights/tensor_inventory.h"

namespace baleen::apps {

/// A preset name, a config.json, or a folder that has one. Throws ConfigError or SystemError.
ModelConfig config_from(const std::string& preset_or_path);

/// Values of --numerics: "checkpoint", "reference", "plain", and each with "+invariant".
const std::vector<std::string>& numerics_names();
inline constexpr const char* kNumericsHelp =
    "Rounding of activations and caches; +invariant: sums in one order per token, so that batch, "
    "chunks, cache and threads change no bit";

/// fp4 (as published: FP8 matrices, FP4 experts), fp8, bf16, f32, f64.
const std::vector<std::string>& format_names();
weights::CheckpointFormat format_from(const std::string& name);

}  // namespace baleen::apps
