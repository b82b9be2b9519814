// Full vocabulary, temperature + top-k 40 + top-p 0.95 + draw + log-prob; wide rows (no filter)
// beside. Bytes: each logit read once.

#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/benching/kernel_bench.h"
#include "kernels/sampling/sampling_rows.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels {
namespace {

using benching::BenchContext;
using benching::Ceiling;

constexpr int32_t kVocab = 129'280;

void run(BenchContext& bench) {
  struct Kind {
    const char* name;
    SamplingRow row;
  };
  const std::vector<Kind> kinds = {
      {"top_k:40/top_p:0.95", {.temperature = 0.7F, .top_k = 40, .top_p = 0.95F}},
      {"greedy", {.temperature = 0.0F}},
      {"plain", {}},
  };
  testing::RandomValues random(3);
  const std::vector<float> block = random.normals(1'000'003, 2);
  for (const int rows : {1, 4, 8, 64, 256}) {
    const int64_t set_floats = int64_t{rows} * kVocab;
    const int sets = BenchContext::sets_for(set_floats * 4);
    device::Buffer<float> logits(set_floats * sets);
    for (int64_t at = 0; at < logits.count(); at += static_cast<int64_t>(block.size())) {
      const auto count = std::min<int64_t>(static_cast<int64_t>(block.size()), logits.count() - at);
      BALEEN_CUDA_CHECK(cudaMemcpy(logits.data() + at,
                                   block.data(),
                                   static_cast<size_t>(count) * sizeof(float),
                                   cudaMemcpyHostToDevice));
    }
    device::Buffer<SampledRow> sampled(rows);
    for (const Kind& kind : kinds) {
      std::vector<SamplingRow> host(static_cast<size_t>(rows), kind.row);
      for (size_t i = 0; i < host.size(); ++i) {
        host[i].seed = i;
        host[i].position = static_cast<int64_t>(1000 + i);
      }
      const auto params = device::Buffer<SamplingRow>::from_host(host);
      const auto batch = [&](int set) {
        SamplingBatch out;
        out.logits = logits.data() + set * set_floats;
        out.row_stride = kVocab;
        out.vocab = kVocab;
        out.num_rows = rows;
        out.rows = params.data();
        out.sampled = sampled.data();
        return out;
      };
      bench.measure({.row = std::string("sampling/") + kind.name + "/bs:" + std::to_string(rows),
                     .mode = "invariant",
                     .bytes = set_floats * 4,
                     .ceiling = rows < 64 ? Ceiling::kLatency : Ceiling::kRead},
                    sets,
                    [&](cudaStream_t stream, int set) { sample_rows_sm90(batch(set), stream); });
    }
  }
}

BALEEN_KERNEL_BENCH("sampling", run)

}  // namespace
}  // namespace baleen::kernels
