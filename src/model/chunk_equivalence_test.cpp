// Prompt lengths and chunk sizes around group and window borders, in float through the runner's
// interface: one-shot, chunked and token-by-token runs agree, and so does decoding after them.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/forward.h"
#include "model/small_models_for_tests.h"

namespace baleen::model {
namespace {

constexpr double kCutTolerance = 1e-4;
constexpr int64_t kDecoded = 9;

const std::vector<int64_t>& prompt_lengths() {
  static const std::vector<int64_t> lengths = {
      1, 2, 3, 4, 5, 7, 8, 9, 127, 128, 129, 131, 132, 133, 255, 256, 257, 515};
  return lengths;
}

class ChunkEquivalenceTest : public testing::Test {
 protected:
  static constexpr int64_t kTokens = 515 + kDecoded;

  ChunkEquivalenceTest()
      : model_(small_model(small_config({0, 4, 128}), at::kFloat),
               {.numerics = "plain", .max_context = kTokens}) {
    const at::Tensor ids = some_ids(kTokens, 40);
    for (int64_t i = 0; i < kTokens; ++i) {
      ids_.push_back(static_cast<int32_t>(ids[i].item<int64_t>()));
    }
    Sequence whole = model_.new_sequence();
    run(whole, kTokens);
    reference_ = output_.logits;
  }

  /// Runs the next tokens with all logits into output_.
  void run(Sequence& sequence, int64_t count) {
    const auto begin = sequence.num_tokens();
    const RowInput row{.sequence = &sequence,
                       .first_position = begin,
                       .ids = std::span<const int32_t>(ids_).subspan(
                           static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
                       .logits = LogitsWanted::kAll};
    model_.forward({&row, 1}, output_);
  }

  /// run() and the largest difference to the one-shot run.
  double step(Sequence& sequence, int64_t count) {
    const auto first = static_cast<std::size_t>(sequence.num_tokens() * output_.vocab_size);
    run(sequence, count);
    double worst = 0.0;
    for (std::size_t i = 0; i < output_.logits.size(); ++i) {
      worst =
          std::max(worst, static_cast<double>(std::abs(output_.logits[i] - reference_[first + i])));
    }
    return worst;
  }

  Model model_;
  std::vector<int32_t> ids_;
  ForwardOutput output_;
  std::vector<float> reference_;
};

TEST_F(ChunkEquivalenceTest, EveryLengthAndChunkSizeThenDecode) {
  for (const int64_t chunk : {1, 3, 4, 5, 64, 127, 128, 129}) {
    // One walk in whole chunks serves every prompt length: a copy of its state goes on from there.
    Sequence walk = model_.new_sequence();
    for (const int64_t length : prompt_lengths()) {
      while (walk.num_tokens() + chunk <= length) {
        ASSERT_LE(step(walk, chunk), kCutTolerance) << "chunk " << chunk;
      }
      Sequence sequence = walk.clone();
      if (sequence.num_tokens() < length) {
        ASSERT_LE(step(sequence, length - sequence.num_tokens()), kCutTolerance)
            << "chunk " << chunk << " length " << length;
      }
      for (int64_t i = 0; i < kDecoded; ++i) {
        ASSERT_LE(step(sequence, 1), kCutTolerance) << "chunk " << chunk << " length " << length;
      }
    }
  }
}

TEST_F(ChunkEquivalenceTest, EveryLengthInOneStepThenDecode) {
  for (const int64_t length : prompt_lengths()) {
    Sequence sequence = model_.new_sequence();
    ASSERT_LE(step(sequence, length), kCutTolerance) << length;
    for (int64_t i = 0; i < kDecoded; ++i) {
      ASSERT_LE(step(sequence, 1), kCutTolerance) << length;
    }
  }
}

}  // namespace
}  // namespace baleen::model
