#pragma once
// Parameters that are a formula of their published names: the same on every machine and in every
// language, so a fixture needs no weight file. The golden toy and the fixtures of the Hugging Face
// port use it.
//
//   ModelParameters params = make_hash_filled(config, {}, options);

#include <cstdint>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "model/parameters.h"

namespace baleen::model {

/// In [-1, 1): element `index` (flat, row-major) of the tensor called `name`.
double hash_fill_value(std::string_view name, uint32_t index);

struct HashFill {
  double norm = 0.25;      // norms are 1 + norm * v
  double embedding = 1.0;  // embed.weight is embedding * v
  double other = 0.5;      // everything else is other * v
  std::string salt;        // in front of the hashed names: another set of weights
};

/// tid2eid[token][slot] = (5·token + 1 + 2·slot) mod E.
ModelParameters make_hash_filled(const ModelConfig& config,
                                 const HashFill& fill,
                                 const at::TensorOptions& options);

/// The configuration of the golden toy: four layers (window, c4, c128 with ratio 16, c4) and MTP.
ModelConfig golden_toy_config();

}  // namespace baleen::model
