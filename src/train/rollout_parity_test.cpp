// With invariant sums the log-probabilities of the trainer's forward are those that the serving
// model reports, bit for bit: prefill and token by token, with other samples beside it, gradients
// kept.

#include <span>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/sampling/sampling.h"
#include "model/forward.h"
#include "train/row_logprobs.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {
namespace {

/// Of each token but the first, by a model that gets `prefill` tokens at once and then one by one.
std::vector<float> served_logprobs(model::Model& served,
                                   const std::vector<int32_t>& ids,
                                   std::size_t prefill) {
  model::Sequence sequence = served.new_sequence();
  std::vector<float> logprobs;
  model::ForwardOutput output;
  for (std::size_t begin = 0; begin + 1 < ids.size();) {
    const std::size_t count = begin == 0 ? prefill : 1;
    const model::RowInput row{.sequence = &sequence,
                              .first_position = static_cast<int64_t>(begin),
                              .ids = std::span(ids).subspan(begin, count),
                              .logits = model::LogitsWanted::kAll};
    served.forward({&row, 1}, output);
    for (std::size_t i = 0; i < count; ++i) {
      logprobs.push_back(
          kernels::plain_logprob<float>(output.row(static_cast<int64_t>(i)), ids[begin + i + 1]));
    }
    begin += count;
  }
  return logprobs;
}

TEST(RolloutParityTest, TrainerAndServingModelGiveEqualBits) {
  for (const bool rounded : {false, true}) {
    model::ModelParameters params = fresh_nano(nano_config(), 11, at::kFloat);
    if (rounded) {
      model::set_formats(params, {ops::LinearFormat::kFp8, ops::LinearFormat::kFp4});
    }
    Masters masters = plain_masters(std::move(params),
                                    {.indexer = true},
                                    rounded ? WeightRounding::kServed : WeightRounding::kNone);
    const std::string name = rounded ? "reference+invariant" : "plain+invariant";
    const ops::Numerics numerics = ops::Numerics::by_name(name);
    model::ForwardConfig config;
    config.numerics = name;
    model::ModelParameters shown = masters.leaves();
    model::for_each_parameter(
        shown, [](const model::ParameterInfo&, at::Tensor& value) { value = value.detach(); });
    model::Model served(std::move(shown), config);

    std::vector<Sample> samples = edge_samples(32);
    const LossDenominators ones{.weight = 1.0, .mtp_weight = 1.0};
    for (Sample& sample : samples) {
      sample.weights.assign(sample.ids.size(), 1.0F);
    }
    const PackedBatch batch = pack(samples, ones, {});
    const model::RopeTables tables =
        model::make_rope_tables(masters.config(), 40, masters.values().embed, numerics);
    const PackedForward out =
        packed_forward(masters.leaves(), batch, {.numerics = numerics, .tables = &tables});
    const at::Tensor logprobs = row_logprobs(out.hidden,
                                             masters.leaves().head,
                                             batch.main.targets,
                                             {.numerics = numerics, .chunk_rows = 16})
                                    .logprobs;
    EXPECT_TRUE(logprobs.requires_grad());
    const float* found = logprobs.const_data_ptr<float>();
    for (const PackedSample& packed : batch.samples) {
      const std::vector<int32_t>& ids = samples[static_cast<std::size_t>(packed.number)].ids;
      const std::vector<float> expected =
          served_logprobs(served, ids, std::min<std::size_t>(7, ids.size() - 1));
      ASSERT_EQ(static_cast<int64_t>(expected.size()), packed.tokens);
      for (const float value : expected) {
        EXPECT_EQ(*found++, value) << name << " sample " << packed.number;
      }
    }
  }
}

}  // namespace
}  // namespace baleen::train
