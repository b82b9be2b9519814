// The decode pass on kernels against the model through tensor operators, from the same published
// files: a cut-down checkpoint of Flash's shape, token by token from the first on, two sequences.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "device/stream.h"
#include "model/load_parameters.h"
#include "model/small_models_for_tests.h"
#include "model/whole_model.h"
#include "ops/rope.h"
#include "runner/decode/decode_loader.h"
#include "runner/decode/decode_pass.h"
#include "weights/model_presets.h"
#include "weights/synth.h"

namespace baleen::runner {
namespace {

constexpr int32_t kSequences = 2;
constexpr int64_t kSteps =
    300;  // past the window, two entries of ratio 128, more of ratio 4 than picks
constexpr int64_t kPicks = 64;
constexpr int64_t kPage = 256;

class FlashDecodeGpu : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::filesystem::temp_directory_path() / "baleen_flash_decode";
    std::filesystem::remove_all(folder_);
    ModelConfig config = weights::flash_4layer_config();  // window, kC4, kC128, kC4
    config.index_topk = kPicks;
    config.n_routed_experts = 64;
    weights::SynthOptions options;
    options.num_threads = 16;
    weights::write_synthetic(folder_, config, options);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }

  static weights::Checkpoint checkpoint() {
    weights::OpenOptions options;
    options.load_mtp = false;
    return weights::Checkpoint::open(folder_, options);
  }
  static at::Tensor ids(int64_t vocab_size) {
    std::vector<at::Tensor> rows;
    for (int32_t s = 0; s < kSequences; ++s) {
      rows.push_back(model::some_ids(kSteps, vocab_size, s));
    }
    return at::stack(rows);
  }

  /// Logits [sequences, steps, vocabulary] in float, through tensor operators on the device.
  static at::Tensor by_tensors(at::ScalarType dtype) {
    const at::NoGradGuard no_grad;
    const at::Device cuda(at::kCUDA, 0);
    ops::Numerics numerics = ops::Numerics::reference();
    numerics.index_score = ops::IndexScore::kCompute;  // as the kernel: the sum in float
    const model::ModelParameters params =
        model::load_parameters(checkpoint(), at::TensorOptions(dtype).device(cuda));
    const model::RopeTables tables =
        model::make_rope_tables(params.config, kSteps, params.embed, numerics);
    std::vector<at::Tensor> logits;
    const at::Tensor all = ids(params.config.vocab_size);
    for (int32_t s = 0; s < kSequences; ++s) {
      model::SequenceState state(params.config, {}, params.embed.options());
      const std::vector<model::StepRow> rows = {
          {.state = &state, .num_tokens = kSteps, .logits = model::LogitsWanted::kAll}};
      logits.push_back(model::forward_step(params, tables, rows, all[s].to(cuda), numerics)
                           .logits.to(at::kFloat));
    }
    return at::stack(logits);
  }

  /// The same through the captured decode pass, one token of each sequence per step.
  static at::Tensor by_kernels() {
    const weights::Checkpoint files = checkpoint();
    const ModelConfig& config = files.config();
    const int64_t pairs = config.qk_rope_head_dim;
    DecodeWeights weights = load_decode_weights(
        files,
        {.plain = ops::rope_frequencies(pairs, config.rope_theta, std::nullopt),
         .compressed = ops::rope_frequencies(pairs, config.compress_rope_theta, config.yarn)});
    constexpr int32_t kBlocks = 4;
    // Pages of the sequences in turn, page 0 is the sink; every page keeps its window page.
    const int64_t pages = kSequences * kBlocks + 1;
    add_empty_pools(weights,
                    {.max_requests = kSequences, .full_pages = pages, .window_pages = pages});
    std::vector<int32_t> rows;
    for (int32_t s = 0; s < kSequences; ++s) {
      for (int32_t block = 0; block < kBlocks; ++block) {
        rows.push_back(1 + block * kSequences + s);
      }
    }
    // The sequences sit in slots the other way round.
    std::vector<int32_t> slots;
    std::vector<int32_t> by_slot(rows.size());
    for (int32_t s = 0; s < kSequences; ++s) {
      slots.push_back(kSequences - 1 - s);
      std::copy_n(rows.begin() + s * kBlocks, kBlocks, by_slot.begin() + slots.back() * kBlocks);
    }
    std::vector<int32_t> windows;
    for (int32_t page = 0; page < static_cast<int32_t>(pages); ++page) {
      windows.push_back(page);
    }
    device::Buffer<int32_t> tokens(kSequences);
    device::Buffer<int32_t> lengths(kSequences);
    const auto count = device::Buffer<int32_t>::from_host(std::vector<int32_t>{kSequences});
    const auto slot_buffer = device::Buffer<int32_t>::from_host(slots);
    const auto by_slot_buffer = device::Buffer<int32_t>::from_host(by_slot);
    const auto row_buffer = device::Buffer<int32_t>::from_host(rows);
    const auto window_buffer = device::Buffer<int32_t>::from_host(windows);
    DecodeBuffers buffers(config, kSequences, kBlocks * kPage);
    DecodePass pass(weights.model,
                    {.max_requests = kSequences, .max_context = kBlocks * kPage},
                    {.ids = tokens.data(),
                     .slots = slot_buffer.data(),
                     .lengths = lengths.data(),
                     .num_requests = count.data(),
                     .slot_table = by_slot_buffer.data(),
                     .row_table = row_buffer.data(),
                     .table_blocks = kBlocks,
                     .window_pages = window_buffer.data()},
                    buffers,
                    device::multiprocessor_count());
    const device::Stream stream;
    std::unique_ptr<device::Graph> graph;
    const at::Tensor all = ids(config.vocab_size).to(at::kInt).contiguous();
    at::Tensor logits = at::empty({kSequences, kSteps, config.vocab_size}, at::kFloat);
    std::vector<float> row(static_cast<std::size_t>(kSequences * config.vocab_size));
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<int32_t> now;
      for (int32_t s = 0; s < kSequences; ++s) {
        now.push_back(all[s][step].item<int32_t>());
      }
      tokens.copy_from_host(std::span<const int32_t>(now));
      lengths.copy_from_host(
          std::span<const int32_t>(std::vector<int32_t>(kSequences, static_cast<int32_t>(step))));
      if (step == 0) {
        pass.record(stream.get());
        stream.synchronize();
        graph = std::make_unique<device::Graph>(
            device::Graph::capture(stream, [&](device::StreamHandle s) { pass.record(s); }));
      } else {
        graph->launch(stream);
        stream.synchronize();
      }
      BALEEN_CUDA_CHECK(cudaMemcpy(
          row.data(), pass.logits(), row.size() * sizeof(float), cudaMemcpyDeviceToHost));
      for (int32_t s = 0; s < kSequences; ++s) {
        std::copy_n(row.begin() + s * config.vocab_size,
                    config.vocab_size,
                    logits.data_ptr<float>() + (s * kSteps + step) * config.vocab_size);
      }
    }
    return logits;
  }

  static inline std::filesystem::path folder_;
};

double rms(const at::Tensor& x) {
  return std::sqrt(x.to(at::kDouble).square().mean().item<double>());
}

TEST_F(FlashDecodeGpu, KernelsAreAsFarFromDoubleAsTensorOperatorsInFloat) {
  const at::Tensor reference = by_tensors(at::kDouble).to(at::kCPU);
  const at::Tensor in_float = by_tensors(at::kFloat).to(at::kCPU);
  const at::Tensor kernels = by_kernels();
  const double size = rms(reference);
  const double of_float = rms(in_float - reference);
  const double of_kernels = rms(kernels - reference);
  std::printf("flash 4 layers: rms of logits %.3f, from double: tensor float %.3e, kernels %.3e\n",
              size,
              of_float,
              of_kernels);
  for (const int64_t step : {0L, 1L, 3L, 4L, 127L, 128L, 255L, 256L, 299L}) {
    std::printf("  step %3lld: tensor float %.3e, kernels %.3e\n",
                static_cast<long long>(step),
                rms((in_float - reference).select(1, step)),
                rms((kernels - reference).select(1, step)));
  }
  ASSERT_FALSE(kernels.isnan().any().item<bool>());
  // Both round at the same points; a last bit that falls the other way becomes a whole step of
  // bf16, e4m3 or e2m1. The kernels have one rounding more (the attention weights' bf16) and sums
  // of tensor cores, so twice the distance is allowed and no more.
  EXPECT_LE(of_kernels, 2 * of_float);
}

}  // namespace
}  // namespace baleen::runner
