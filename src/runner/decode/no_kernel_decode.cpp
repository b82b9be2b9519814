// Decoding on kernels in a build without CUDA: there is none, and the reason says so.

#include "base/error.h"
#include "runner/decode/decode_bench.h"
#include "runner/decode/kernel_decode.h"

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

DecodePathMaker kernel_decode() {
  throw ConfigError(kReason);
}

DecodeBenchSummary run_decode_bench(const DecodeBenchOptions& /*options*/,
                                    const std::function<void(const DecodeBenchRow&)>& /*on_row*/) {
  throw ConfigError(kReason);
}

}  // namespace baleen::runner
