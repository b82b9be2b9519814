// What runs beside a sequence in a decode step: in invariant mode no bit of its logits depends on
// it, in fast mode they stay within a bound.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "device/stream.h"
#include "kernels/testing/gpu_test.h"
#include "runner/decode/decode_pass.h"
#include "runner/decode/decode_synth.h"
#include "weights/model_presets.h"

namespace baleen::runner {
namespace {

constexpr int32_t kMostBatch = 64;
constexpr int64_t kBatchContext = 4096;

class DecodeBatchGpu : public kernels::testing::GpuTest {
 protected:
  static ModelConfig config() {
    ModelConfig out = weights::flash_4layer_config();  // window, kC4, kC128, kC4
    out.n_routed_experts = 64;  // the router's product has multiples of 64 outputs
    out.vocab_size = 2048;      // 64 rows of logits are compared often
    return out;
  }

  /// Logits of a captured step of the first `batch` sequences, each of `length` tokens before it.
  std::vector<float> logits_of(DecodeSynth& synth, int32_t batch, int64_t length, bool invariant) {
    synth.set_state(batch, length);
    DecodeBuffers buffers(config(), batch, kBatchContext);
    DecodePass pass(synth.model(),
                    {.max_requests = batch, .max_context = kBatchContext, .invariant = invariant},
                    synth.inputs(),
                    buffers,
                    device::multiprocessor_count());
    pass.record(stream());
    synchronize();
    const device::Graph graph =
        device::Graph::capture(owned_stream(), [&](device::StreamHandle s) { pass.record(s); });
    graph.launch(owned_stream());
    synchronize();
    std::vector<uint32_t> refused(1);
    BALEEN_CUDA_CHECK(
        cudaMemcpy(refused.data(), pass.refused(), sizeof(uint32_t), cudaMemcpyDeviceToHost));
    EXPECT_EQ(refused[0], 0U);
    std::vector<float> logits(static_cast<std::size_t>(batch * config().vocab_size));
    BALEEN_CUDA_CHECK(cudaMemcpy(
        logits.data(), pass.logits(), logits.size() * sizeof(float), cudaMemcpyDeviceToHost));
    return logits;
  }
};

// Lengths at the edges of windows and pages, and where attention of many rows would be cut.
constexpr int64_t kBatchLengths[] = {0, 127, 300, 2500, 4094};

TEST_F(DecodeBatchGpu, InvariantStepsOfOneTo64RequestsGiveEqualBits) {
  DecodeSynth synth({.config = config(), .max_requests = kMostBatch, .max_context = kBatchContext});
  const auto vocab = static_cast<std::size_t>(config().vocab_size);
  for (const int64_t length : kBatchLengths) {
    const std::vector<float> expected = logits_of(synth, kMostBatch, length, true);
    ASSERT_TRUE(
        std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); }));
    for (const int32_t batch : {1, 2, 7, 16}) {
      const std::vector<float> found = logits_of(synth, batch, length, true);
      int32_t different = 0;
      for (std::size_t r = 0; r < static_cast<std::size_t>(batch); ++r) {
        const auto begin = static_cast<std::ptrdiff_t>(r * vocab);
        different += std::equal(found.begin() + begin,
                                found.begin() + begin + static_cast<std::ptrdiff_t>(vocab),
                                expected.begin() + begin)
                         ? 0
                         : 1;
      }
      EXPECT_EQ(different, 0) << "requests of " << batch << " differ, length " << length;
    }
  }
}

TEST_F(DecodeBatchGpu, FastStepsStayWithinRoundingOfEachOther) {
  DecodeSynth synth({.config = config(), .max_requests = kMostBatch, .max_context = kBatchContext});
  for (const int64_t length : kBatchLengths) {
    const std::vector<float> expected = logits_of(synth, kMostBatch, length, false);
    for (const int32_t batch : {1, 2, 7, 16}) {
      const std::vector<float> found = logits_of(synth, batch, length, false);
      double square = 0.0;
      double size = 0.0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        square += (found[i] - expected[i]) * (found[i] - expected[i]);
        size += expected[i] * expected[i];
      }
      const double distance = std::sqrt(square / size);
      std::printf("fast, batch %d of %d, length %lld: %.4f of the logits' size\n",
                  batch,
                  kMostBatch,
                  static_cast<long long>(length),
                  distance);
      // A last bit that falls the other way becomes a step of bf16, e4m3 or e2m1, as between the
      // pass and the model in double (0.13 in this shape).
      EXPECT_LE(distance, 0.2) << "batch " << batch << " length " << length;
    }
  }
}

}  // namespace
}  // namespace baleen::runner
