#pragma once
// `baleen synth --device cuda`: a model of Flash's shape with any number of layers, made directly
// in device memory, filled pools beside it, and one decode step to show that it runs.
//
//   const DeviceSynthReport report = make_device_synth({.config = config, .requests = 8});

#include <cstdint>
#include <string>

#include "base/model_config.h"

namespace baleen::runner {

struct DeviceSynthOptions {
  ModelConfig config;
  int32_t requests = 1;
  int64_t context = 4096;  // tokens of each sequence before the step
  uint64_t seed = 1;
};

struct DeviceSynthReport {
  std::string card;
  int64_t weight_bytes = 0;
  int64_t pool_bytes = 0;
  double fill_s = 0.0;      // to make both
  double step_us = 0.0;     // of the captured graph
  double logits_rms = 0.0;  // finite, or it throws
};

/// Frees everything again. Throws ConfigError when the kernels do not cover the shape or the build
/// has none, DeviceError when it does not fit.
DeviceSynthReport make_device_synth(const DeviceSynthOptions& options);

}  // namespace baleen::runner
