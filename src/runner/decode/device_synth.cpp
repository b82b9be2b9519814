#include "runner/decode/device_synth.h"

#include <chrono>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "device/cuda_check.h"
#include "device/stream.h"
#include "runner/decode/bench_rates.h"
#include "runner/decode/decode_pass.h"
#include "runner/decode/decode_synth.h"

namespace baleen::runner {

DeviceSynthReport make_device_synth(const DeviceSynthOptions& options) {
  if (const std::string reason = decode_unsupported(options.config); !reason.empty()) {
    throw ConfigError("synth --device cuda: " + reason);
  }
  if (device::device_count() == 0) {
    throw ConfigError("synth --device cuda: no CUDA device");
  }
  const auto begin = std::chrono::steady_clock::now();
  DecodeSynth synth({.config = options.config,
                     .max_requests = options.requests,
                     .max_context = options.context + 1,
                     .seed = options.seed});
  DeviceSynthReport report;
  report.fill_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  report.card = device::device_name();
  report.weight_bytes = synth.weight_bytes();
  report.pool_bytes = synth.pool_bytes();
  DecodeBuffers buffers(options.config, options.requests, options.context + 1);
  DecodePass pass(synth.model(),
                  {.max_requests = options.requests, .max_context = options.context + 1},
                  synth.inputs(),
                  buffers,
                  device::multiprocessor_count());
  const device::Stream stream;
  pass.record(stream.get());
  stream.synchronize();
  const device::Graph graph =
      device::Graph::capture(stream, [&](device::StreamHandle s) { pass.record(s); });
  report.step_us = graph_times(graph, stream, 10).median_us;
  std::vector<float> logits(static_cast<std::size_t>(options.requests * options.config.vocab_size));
  BALEEN_CUDA_CHECK(cudaMemcpy(
      logits.data(), pass.logits(), logits.size() * sizeof(float), cudaMemcpyDeviceToHost));
  double square = 0.0;
  for (const float logit : logits) {
    square += double{logit} * logit;
  }
  report.logits_rms = std::sqrt(square / static_cast<double>(logits.size()));
  if (!std::isfinite(report.logits_rms)) {
    throw Error("synth --device cuda: the step's logits are not finite");
  }
  return report;
}

}  // namespace baleen::runner
