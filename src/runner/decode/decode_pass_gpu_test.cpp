// A decode pass on a synthetic model of Flash's shape: the captured graph gives the bits of the
// eager launches, whatever state it was captured at, and a sequence does not feel what its
// neighbours are.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cache/choice_layout.h"
#include "cache/pick_codec.h"
#include "device/stream.h"
#include "kernels/testing/gpu_test.h"
#include "runner/decode/decode_floor.h"
#include "runner/decode/decode_pass.h"
#include "runner/decode/decode_synth.h"
#include "runner/decode/prompt_runner.h"
#include "weights/model_presets.h"

namespace baleen::runner {
namespace {

class DecodePassGpu : public kernels::testing::GpuTest {
 protected:
  static constexpr int32_t kRequests = 5;
  static constexpr int64_t kContext = 4096;

  static ModelConfig config() {
    ModelConfig out = weights::flash_4layer_config();  // window, kC4, kC128, kC4
    out.n_routed_experts = 64;  // the router's product has multiples of 64 outputs
    return out;
  }

  /// Not one captured state: real lengths are set afterwards.
  std::vector<float> run(DecodeSynth& synth,
                         DecodePass& pass,
                         int32_t requests,
                         int64_t length,
                         const device::Graph* graph) {
    synth.set_state(requests, length);
    if (graph != nullptr) {
      graph->launch(owned_stream());
    } else {
      pass.record(stream());
    }
    synchronize();
    std::vector<float> logits(
        static_cast<std::size_t>(kRequests * synth.model().config.vocab_size));
    BALEEN_CUDA_CHECK(cudaMemcpy(
        logits.data(), pass.logits(), logits.size() * sizeof(float), cudaMemcpyDeviceToHost));
    logits.resize(static_cast<std::size_t>(requests * synth.model().config.vocab_size));
    return logits;
  }
};

TEST_F(DecodePassGpu, TheGraphGivesTheBitsOfEagerLaunchesAtEveryState) {
  DecodeSynth synth({.config = config(), .max_requests = kRequests, .max_context = kContext});
  DecodeBuffers eager_buffers(config(), kRequests, kContext);
  DecodePass eager(synth.model(),
                   {.max_requests = kRequests, .max_context = kContext, .programmatic = false},
                   synth.inputs(),
                   eager_buffers,
                   device::multiprocessor_count());
  DecodeBuffers buffers(config(), kRequests, kContext);
  DecodePass captured(synth.model(),
                      {.max_requests = kRequests, .max_context = kContext, .programmatic = true},
                      synth.inputs(),
                      buffers,
                      device::multiprocessor_count());
  captured.record(stream());
  synchronize();
  const device::Graph graph =
      device::Graph::capture(owned_stream(), [&](device::StreamHandle s) { captured.record(s); });
  // Lengths at the edges of groups, windows and pages.
  for (const int64_t length : {0L, 1L, 3L, 4L, 126L, 127L, 128L, 255L, 256L, 2047L, 2500L, 4094L}) {
    for (const int32_t requests : {kRequests, 1, 3}) {
      const std::vector<float> a = run(synth, eager, requests, length, nullptr);
      const std::vector<float> b = run(synth, captured, requests, length, &graph);
      ASSERT_TRUE(std::all_of(a.begin(), a.end(), [](float x) { return std::isfinite(x); }))
          << "length " << length << " requests " << requests;
      ASSERT_EQ(a, b) << "length " << length << " requests " << requests;
    }
  }
  std::vector<uint32_t> refused(1);
  BALEEN_CUDA_CHECK(
      cudaMemcpy(refused.data(), captured.refused(), sizeof(uint32_t), cudaMemcpyDeviceToHost));
  EXPECT_EQ(refused[0], 0U);
}

TEST_F(DecodePassGpu, AReplayedGraphGivesTheSameBits) {
  DecodeSynth synth({.config = config(), .max_requests = kRequests, .max_context = kContext});
  DecodeBuffers buffers(config(), kRequests, kContext);
  DecodePass pass(synth.model(),
                  {.max_requests = kRequests, .max_context = kContext},
                  synth.inputs(),
                  buffers,
                  device::multiprocessor_count());
  pass.record(stream());
  synchronize();
  const device::Graph graph =
      device::Graph::capture(owned_stream(), [&](device::StreamHandle s) { pass.record(s); });
  const std::vector<float> first = run(synth, pass, kRequests, 3001, &graph);
  for (int i = 0; i < 200; ++i) {
    graph.launch(owned_stream());
  }
  EXPECT_EQ(run(synth, pass, kRequests, 3001, &graph), first);
}

TEST_F(DecodePassGpu, LogitsDifferFromRequestToRequest) {
  DecodeSynth synth({.config = config(), .max_requests = kRequests, .max_context = kContext});
  DecodeBuffers buffers(config(), kRequests, kContext);
  DecodePass pass(synth.model(),
                  {.max_requests = kRequests, .max_context = kContext},
                  synth.inputs(),
                  buffers,
                  device::multiprocessor_count());
  const std::vector<float> logits = run(synth, pass, kRequests, 900, nullptr);
  const auto vocab = static_cast<std::size_t>(config().vocab_size);
  for (std::size_t r = 1; r < kRequests; ++r) {
    EXPECT_FALSE(std::equal(logits.begin(),
                            logits.begin() + static_cast<std::ptrdiff_t>(vocab),
                            logits.begin() + static_cast<std::ptrdiff_t>(r * vocab)));
  }
}

/// Logits behind the last of 700 tokens that run as passes of `cuts` tokens, from an empty
/// sequence: everything that a token reads was written by the same cut. A neighbour of its own
/// length may run in the same passes.
std::vector<float> logits_of_cut(PromptRunner& prompts,
                                 const ModelConfig& config,
                                 const std::vector<int32_t>& cuts,
                                 bool neighbour,
                                 const device::Stream& stream) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < std::accumulate(cuts.begin(), cuts.end(), 0); ++i) {
    ids.push_back(static_cast<int32_t>((i * 7919LL + 11) % config.vocab_size));
  }
  const std::span<const int32_t> all = ids;
  int32_t position = 0;
  for (const int32_t count : cuts) {
    std::vector<PromptPiece> pieces;
    std::vector<int32_t> results = {count - 1};
    if (neighbour) {
      pieces.push_back(
          {.ids = all.first(33), .slot = RequestSlot(1), .position = position == 0 ? 0 : 100});
      results[0] += 33;
    }
    pieces.push_back(
        {.ids = all.subspan(static_cast<std::size_t>(position), static_cast<std::size_t>(count)),
         .slot = RequestSlot(0),
         .position = position});
    prompts.run(pieces, results, stream);
    stream.synchronize();
    position += count;
  }
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
  BALEEN_CUDA_CHECK(cudaMemcpy(
      logits.data(), prompts.logits(), logits.size() * sizeof(float), cudaMemcpyDeviceToHost));
  return logits;
}

TEST_F(DecodePassGpu, HowAPromptIsCutChangesNoBit) {
  DecodeSynth synth(
      {.config = config(), .max_requests = 2, .max_context = kContext, .window_blocks = 5});
  synth.set_state(2, 700);
  const DecodeInputs state = synth.inputs();
  const auto differing = [](const std::vector<float>& a, const std::vector<float>& b) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      count += a[i] != b[i] ? 1 : 0;
    }
    return count;
  };
  // Kind by kind, so that a failure names the layer; the whole model last.
  for (const char* kind : {"none", "swa", "c4", "c128", "all"}) {
    DecodeModel model = synth.model();
    std::erase_if(model.layers, [&](const DecodeLayer& layer) {
      return std::string_view(kind) != "all" &&
             layer_kind_name(layer.spec.kind) != std::string_view(kind);
    });
    PromptRunner prompts(model,
                         {.full = state.slot_table,
                          .window_pages = state.window_pages,
                          .blocks = state.table_blocks,
                          .slots = 2},
                         kContext);
    ASSERT_EQ(prompts.max_tokens(), kMostPassTokens);
    const auto run_cut = [&](const std::vector<int32_t>& cuts, bool neighbour) {
      return logits_of_cut(prompts, config(), cuts, neighbour, owned_stream());
    };
    const std::vector<float> expected = run_cut({700}, false);
    ASSERT_TRUE(
        std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); }));
    EXPECT_EQ(differing(run_cut({512, 188}, false), expected), 0U) << kind << " 512";
    EXPECT_EQ(differing(run_cut({350, 350}, true), expected), 0U) << kind << " 350";
    EXPECT_EQ(differing(run_cut({512, 128, 60}, false), expected), 0U) << kind << " 60";
    EXPECT_EQ(differing(run_cut({512, 155, 33}, false), expected), 0U) << kind << " 33";
    EXPECT_EQ(differing(run_cut({512, 187, 1}, false), expected), 0U) << kind << " 1";
    EXPECT_EQ(differing(run_cut({1, 2, 5, 56, 64, 65, 127, 128, 251, 1}, false), expected), 0U)
        << kind << " many";
    EXPECT_EQ(differing(run_cut(std::vector<int32_t>(28, 25), true), expected), 0U)
        << kind << " 25";
    std::vector<uint32_t> refused(1);
    BALEEN_CUDA_CHECK(
        cudaMemcpy(refused.data(), prompts.refused(), sizeof(uint32_t), cudaMemcpyDeviceToHost));
    EXPECT_EQ(refused[0], 0U);
  }
}

/// What a pass of one layer leaves in its buffers, one stage after another.
std::vector<std::pair<const char*, std::vector<uint8_t>>> stages_of(const DecodeBuffers& buffers,
                                                                    int64_t tokens) {
  std::vector<std::pair<const char*, std::vector<uint8_t>>> out;
  const auto add = [&]<class T>(const char* name, const device::Buffer<T>& buffer) {
    const auto bytes = buffer.bytes() / static_cast<std::size_t>(buffers.max_requests) *
                       static_cast<std::size_t>(tokens);
    std::vector<uint8_t>& copy = out.emplace_back(name, std::vector<uint8_t>(bytes)).second;
    BALEEN_CUDA_CHECK(cudaMemcpy(copy.data(), buffer.data(), bytes, cudaMemcpyDeviceToHost));
  };
  add("window_rows", buffers.window_rows);
  add("latent", buffers.latent);
  add("kv", buffers.kv);
  add("main_rows", buffers.main_rows);
  add("index_rows", buffers.index_rows);
  add("latent_codes", buffers.latent_codes);
  add("query", buffers.query);
  add("index_query", buffers.index_query);
  add("index_codes", buffers.index_codes);
  add("index_weights", buffers.index_weights);
  add("picks", buffers.picks);
  add("context", buffers.context);
  add("output_codes", buffers.output_codes);
  add("gate_logits", buffers.gate_logits);
  add("routes", buffers.routes);
  add("streams", buffers.streams);
  return out;
}

TEST_F(DecodePassGpu, APassOfALayerLeavesTheSameBytesAgain) {
  constexpr int32_t kTokens = 512;
  DecodeSynth synth(
      {.config = config(), .max_requests = 2, .max_context = kContext, .window_blocks = 5});
  synth.set_state(2, 700);
  const DecodeInputs state = synth.inputs();
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kTokens; ++i) {
    ids.push_back(static_cast<int32_t>((i * 7919LL + 11) % config().vocab_size));
  }
  for (std::size_t layer = 0; layer < 3; ++layer) {  // window, kC4, kC128
    DecodeModel model = synth.model();
    model.layers = {synth.model().layers[layer]};
    PromptRunner prompts(model,
                         {.full = state.slot_table,
                          .window_pages = state.window_pages,
                          .blocks = state.table_blocks,
                          .slots = 2},
                         kContext);
    std::vector<std::pair<const char*, std::vector<uint8_t>>> expected;
    for (int32_t repeat = 0; repeat < 20; ++repeat) {
      const PromptPiece piece{.ids = ids, .slot = RequestSlot(0)};
      const std::vector<int32_t> results = {kTokens - 1};
      prompts.run({&piece, 1}, results, owned_stream());
      synchronize();
      const auto found = stages_of(prompts.buffers(), kTokens);
      if (repeat == 0) {
        expected = found;
        continue;
      }
      for (std::size_t i = 0; i < found.size(); ++i) {
        std::size_t different = 0;
        std::size_t first = 0;
        for (std::size_t b = found[i].second.size(); b-- > 0;) {
          if (found[i].second[b] != expected[i].second[b]) {
            ++different;
            first = b;
          }
        }
        EXPECT_EQ(different, 0U) << layer_kind_name(model.layers[0].spec.kind) << " repeat "
                                 << repeat << " " << found[i].first << " of "
                                 << found[i].second.size() << " bytes, first at " << first;
      }
    }
  }
}

TEST_F(DecodePassGpu, InvariantDecodeGivesTheBitsOfAPrompt) {
  constexpr int32_t kTokens = 700;
  DecodeSynth synth(
      {.config = config(), .max_requests = 2, .max_context = kContext, .window_blocks = 5});
  synth.set_state(1, kTokens - 1);
  const DecodeInputs state = synth.inputs();
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kTokens; ++i) {
    ids.push_back(static_cast<int32_t>((i * 7919LL + 11) % config().vocab_size));
  }
  // The last token is the one that the decode pass finds in its inputs.
  BALEEN_CUDA_CHECK(cudaMemcpy(&ids.back(), state.ids, sizeof(int32_t), cudaMemcpyDeviceToHost));
  const std::span<const int32_t> all = ids;
  PromptRunner prompts(synth.model(),
                       {.full = state.slot_table,
                        .window_pages = state.window_pages,
                        .blocks = state.table_blocks,
                        .slots = 2},
                       kContext);
  const auto run_from = [&](int32_t position, int32_t count) {
    const PromptPiece piece{
        .ids = all.subspan(static_cast<std::size_t>(position), static_cast<std::size_t>(count)),
        .slot = RequestSlot(0),
        .position = position};
    const std::vector<int32_t> results = {count - 1};
    prompts.run({&piece, 1}, results, owned_stream());
    synchronize();
  };
  const auto logits_of = [&](const float* logits) {
    std::vector<float> out(static_cast<std::size_t>(config().vocab_size));
    BALEEN_CUDA_CHECK(
        cudaMemcpy(out.data(), logits, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
    return out;
  };
  run_from(0, 512);
  run_from(512, 188);
  const std::vector<float> expected = logits_of(prompts.logits());
  for (const int32_t graph : {1, 2, 5, 40}) {  // rows behind the first are padding
    run_from(0, 512);
    run_from(512, 187);
    DecodeBuffers buffers(config(), graph, kContext);
    device::Buffer<int32_t> rows(int64_t{graph} * state.table_blocks);
    rows.fill_bytes(0);
    BALEEN_CUDA_CHECK(cudaMemcpy(rows.data(),
                                 state.slot_table,
                                 static_cast<std::size_t>(state.table_blocks) * sizeof(int32_t),
                                 cudaMemcpyDeviceToDevice));
    std::vector<int32_t> padded(static_cast<std::size_t>(graph), 0);
    padded[0] = ids.back();
    const auto id_buffer = device::Buffer<int32_t>::from_host(padded);
    padded[0] = kTokens - 1;
    const auto length_buffer = device::Buffer<int32_t>::from_host(padded);
    DecodeInputs inputs = state;
    inputs.ids = id_buffer.data();
    inputs.lengths = length_buffer.data();
    inputs.row_table = rows.data();
    DecodePass pass(synth.model(),
                    {.max_requests = graph, .max_context = kContext, .invariant = true},
                    inputs,
                    buffers,
                    device::multiprocessor_count());
    pass.record(stream());
    synchronize();
    const std::vector<float> found = logits_of(pass.logits());
    std::size_t different = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      different += found[i] != expected[i] ? 1 : 0;
    }
    EXPECT_EQ(different, 0U) << "in a graph of " << graph;
  }
}

TEST_F(DecodePassGpu, PicksAreCodedAsRecordsKeepThem) {
  constexpr int64_t kLongContext = 20'000;
  DecodeSynth synth({.config = config(), .max_requests = kRequests, .max_context = kLongContext});
  DecodeBuffers buffers(config(), kRequests, kLongContext, 0, /*records=*/true);
  DecodePass pass(synth.model(),
                  {.max_requests = kRequests, .max_context = kLongContext},
                  synth.inputs(),
                  buffers,
                  device::multiprocessor_count());
  const cache::ChoiceLayout layout = cache::choice_layout(config());
  const auto topk = static_cast<std::size_t>(layout.topk);
  const auto layers = layout.picking_layers.size();
  const auto stride = static_cast<std::size_t>(pick_code_stride(config(), kLongContext));
  // No set; the first one; bitmaps; low parts of one, two and three bits.
  for (const int64_t length : {2050L, 2051L, 4000L, 7000L, 9000L, 19'990L}) {
    synth.set_state(kRequests, length);
    buffers.pick_codes.fill_bytes(0xEE);
    pass.record(stream());
    synchronize();
    const std::vector<int32_t> picks = buffers.pick_record.to_host();
    const std::vector<uint8_t> codes = buffers.pick_codes.to_host();
    const int32_t visible = layout.visible_entries(static_cast<int32_t>(length));
    for (std::size_t token = 0; token < kRequests; ++token) {
      std::vector<uint8_t> expected;
      for (std::size_t layer = 0; layer < layers && visible > layout.topk; ++layer) {
        const std::size_t row = layer * kRequests + token;
        cache::encode_picks(
            std::span(picks).subspan(row * topk, topk), visible, layout.topk, expected);
      }
      ASSERT_EQ(static_cast<int64_t>(expected.size()),
                layout.pick_bytes(static_cast<int32_t>(length)));
      expected.resize(stride, 0xEE);
      const auto begin = codes.begin() + static_cast<std::ptrdiff_t>(token * stride);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), begin))
          << "length " << length << " token " << token;
    }
    EXPECT_EQ(buffers.errors.to_host()[0], 0U);
  }
}

TEST(DecodeModelTest, SaysWhatTheKernelsDoNotCover) {
  EXPECT_EQ(decode_unsupported(weights::flash_config()), "");
  EXPECT_EQ(decode_unsupported(weights::pro_config()), "");
  EXPECT_EQ(decode_unsupported(weights::flash_4layer_config()),
            "n_routed_experts 16 (kernels: multiples of 64)");
  const std::string tiny = decode_unsupported(weights::tiny_config());
  EXPECT_NE(tiny.find("head_dim 64 (kernels: 512)"), std::string::npos) << tiny;
  EXPECT_NE(tiny.find("hidden_size 128 (kernels: 4096, 7168)"), std::string::npos) << tiny;
}

TEST(DecodeFloorTest, CountsTheBytesOfThePublishedTable) {
  // Of the published shape at batch 1 and 4K, MB, counted part by part over all layers.
  const ModelConfig config = weights::flash_config();
  double bytes = ends_floor_bytes(config, {.tokens = 1, .context = 4096});
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    bytes += layer_floor_bytes(
        config, config.layers[static_cast<std::size_t>(i)], {.tokens = 1, .context = 4096});
  }
  // Linears, routed experts, shared, head, compressors, indexer, hyper-connections, router, caches.
  EXPECT_NEAR(bytes * 1e-6, 4599 + 3450 + 1082 + 1060 + 520 + 275 + 135 + 90 + 13, 15);
  EXPECT_NEAR(expected_experts(config, 1), 6.0, 1e-9);
  EXPECT_NEAR(expected_experts(config, 1000), 256.0, 1e-6);
}

}  // namespace
}  // namespace baleen::runner
