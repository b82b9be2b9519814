#pragma once
// The nano model (model/nano_config.h) with fresh weights. No file: it is built from a seed. Pure.
//
//   model::ModelParameters params = fresh_nano(nano_config(), seed, at::kFloat);

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "model/nano_config.h"
#include "model/parameters.h"

namespace baleen::train {

using model::nano_config;
using model::NanoOptions;

model::ModelParameters fresh_nano(const ModelConfig& config, uint64_t seed, at::ScalarType dtype);

}  // namespace baleen::train
