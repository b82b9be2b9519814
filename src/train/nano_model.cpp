#include "train/nano_model.h"

#include "model/initialize.h"

namespace baleen::train {

model::ModelParameters fresh_nano(const ModelConfig& config, uint64_t seed, at::ScalarType dtype) {
  model::FreshOptions fresh;
  fresh.seed = seed;
  fresh.by_inputs = true;
  fresh.hyper_scale = 0.1;
  fresh.comb_diagonal = 3.0;
  return model::make_fresh_parameters(config, fresh, at::TensorOptions(dtype));
}

}  // namespace baleen::train
