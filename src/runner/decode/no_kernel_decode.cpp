// Decoding on kernels in a build without CUDA: there is none, and the reason says so.

#include "base/error.h"
#include "runner/decode/decode_bench.h"
#include "runner/decode/device_synth.h"
#include "runner/decode/kernel_decode.h"
#include "runner/decode/prompt_bench.h"

namespace baleen::runner {
namespace {

constexpr const char* kReason = "this program was built without CUDA kernels";

}  // namespace

std::string kernel_decode_refusal(const ModelConfig& /*config*/,
                                  const cache::CacheFormats& /*formats*/,
                                  const std::string& /*numerics*/,
                                  int64_t /*max_context*/) {
  return kReason;
}

KernelDecodeNeeds kernel_decode_needs(const ModelConfig& /*config*/,
                                      const KernelDecodeShape& /*shape*/,
                                      int32_t /*num_multiprocessors*/) {
  throw ConfigError(kReason);
}

DecodePathMaker kernel_decode() {
  throw ConfigError(kReason);
}

DecodeBenchSummary run_decode_bench(const DecodeBenchOptions& /*options*/,
                                    const std::function<void(const DecodeBenchRow&)>& /*on_row*/) {
  throw ConfigError(kReason);
}

void run_prompt_bench(const PromptBenchOptions& /*options*/,
                      const std::function<void(const DecodeBenchRow&)>& /*on_row*/) {
  throw ConfigError(kReason);
}

DeviceSynthReport make_device_synth(const DeviceSynthOptions& /*options*/) {
  throw ConfigError(kReason);
}

}  // namespace baleen::runner
