// The engine gives one text and one set of log-probabilities however it runs: alone or beside
// others, in chunks of any size, behind cached prefixes, with drafts or without; and the trainer's
// forward gives the same bits, with or without the engine's recorded choices.

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/fake_quantized.h"
#include "model/initialize.h"
#include "rl/drawn_texts.h"
#include "rl/nano_tokenizer.h"
#include "rl/numeric_cell.h"
#include "runner/model_executor.h"
#include "train/nano_model.h"
#include "weights/model_presets.h"

namespace baleen {
namespace {

struct Subject {
  model::ModelParameters params;
  std::string numerics;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::vector<rl::TokenIds> prompts;
};

std::vector<rl::TokenIds> prompts_of(int64_t vocab, const std::vector<std::size_t>& lengths) {
  // A common beginning, so that a shared cache has something to share.
  std::vector<rl::TokenIds> prompts;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    prompts.emplace_back();
    for (std::size_t t = 0; t < lengths[i]; ++t) {
      const bool own = t + 20 >= lengths[i];
      uint64_t z = (t + 1) * 0x9E3779B97F4A7C15ULL + (own ? (i + 1) * 0xD1B54A32D192ED03ULL : 0);
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
      prompts.back().push_back(static_cast<int32_t>((z >> 33) % static_cast<uint64_t>(vocab)));
    }
  }
  return prompts;
}

Subject nano() {
  return {train::fresh_nano(train::nano_config({.with_mtp = true}), 11, at::kFloat),
          "plain+invariant",
          rl::nano_tokenizer(),
          prompts_of(32, {9, 14, 25, 30, 41, 9, 60})};
}

/// The published formats: FP8 matrices, FP4 experts, FP8 rows, FP4 index keys.
Subject quantised() {
  model::ModelParameters params =
      model::make_fresh_parameters(weights::tiny_config(),
                                   {.seed = 1, .matrix_std = 0.15, .vector_noise = 0.1},
                                   at::TensorOptions(at::kFloat));
  model::set_formats(params, {ops::LinearFormat::kFp8, ops::LinearFormat::kFp4});
  return {model::fake_quantized(params),
          "reference+invariant",
          text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
          prompts_of(512, {290, 300, 40})};
}

struct Engine {
  int32_t slots = 8;
  int32_t chunk = 512;
  int64_t cache_bytes = 0;
  int32_t drafts = 0;
  int64_t new_tokens = 24;
};

std::vector<rl::DrawnText> draw(const Subject& subject, const Engine& how) {
  model::ForwardConfig forward;
  forward.numerics = subject.numerics;
  forward.max_context = 1024;
  forward.record_choices = true;
  forward.with_mtp = how.drafts > 0;
  forward.max_rollback = how.drafts;
  runner::RunnerConfig runner{.num_slots = how.slots,
                              .max_step_tokens = 1024,
                              .cache_bytes = how.cache_bytes,
                              .paint_pages = how.cache_bytes > 0,
                              .drafts = {.max_drafts = how.drafts}};
  return rl::draw_texts(std::make_unique<runner::ModelExecutor>(
                            model::Model(subject.params, forward), runner, "subject"),
                        subject.tokenizer,
                        subject.prompts,
                        {.new_tokens = how.new_tokens,
                         .chunk = how.chunk,
                         .choices = true,
                         .max_drafts = how.drafts});
}

void expect_same(const std::vector<rl::DrawnText>& found,
                 const std::vector<rl::DrawnText>& expected,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].ids, expected[i].ids) << what << ", text " << i;
    EXPECT_EQ(found[i].logprobs, expected[i].logprobs) << what << ", text " << i;
    EXPECT_EQ(found[i].choices, expected[i].choices) << what << ", text " << i;
  }
}

void expect_trainer_alike(const Subject& subject, const std::vector<rl::DrawnText>& drawn) {
  std::vector<rl::TokenIds> texts = subject.prompts;
  std::vector<cache::ChoiceRecords> choices;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    texts[i].insert(texts[i].end(), drawn[i].ids.begin(), drawn[i].ids.end());
    choices.push_back(drawn[i].choices);
  }
  rl::NumericSide trainer{.params = subject.params,
                          .numerics = ops::Numerics::by_name(subject.numerics)};
  const rl::ScoredTexts own = rl::score_recording(trainer, texts);
  const rl::ScoredTexts taken = rl::score_replaying(trainer, texts, choices, {});
  trainer.samples_per_forward = 2;
  const rl::ScoredTexts pairs = rl::score_replaying(trainer, texts, choices, {});
  EXPECT_EQ(own.logprobs, taken.logprobs);
  EXPECT_EQ(own.logprobs, pairs.logprobs);
  EXPECT_EQ(own.choices, choices) << "routes and picks of engine and trainer";
  EXPECT_EQ(taken.agreement.route_agreement(), 1.0);
  EXPECT_EQ(taken.agreement.pick_jaccard(), 1.0);
  EXPECT_GT(taken.agreement.num_sets, 0.0);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::vector<float>& scored = own.logprobs[i];
    const std::vector<float> last(scored.end() - static_cast<std::ptrdiff_t>(drawn[i].ids.size()),
                                  scored.end());
    EXPECT_EQ(last, drawn[i].logprobs) << "text " << i << ": drift must be 0, not small";
  }
}

TEST(ExactnessTest, NanoEngineAndTrainerGiveOneSetOfBits) {
  const Subject subject = nano();
  const std::vector<rl::DrawnText> alone = draw(subject, {.slots = 1, .chunk = 512});
  for (const int32_t slots : {3, 64}) {
    for (const int32_t chunk : {5, 16}) {
      expect_same(draw(subject, {.slots = slots, .chunk = chunk}),
                  alone,
                  "slots " + std::to_string(slots) + " chunk " + std::to_string(chunk));
    }
  }
  expect_same(draw(subject, {.slots = 4, .drafts = 3}), alone, "drafts");
  expect_trainer_alike(subject, alone);
}

TEST(ExactnessTest, QuantisedEngineAndTrainerGiveOneSetOfBits) {
  const Subject subject = quantised();
  const std::vector<rl::DrawnText> alone = draw(subject, {.slots = 1, .chunk = 512});
  expect_same(draw(subject, {.slots = 3, .chunk = 33}), alone, "together, chunks of 33");
  const std::vector<rl::DrawnText> cached =
      draw(subject, {.slots = 1, .chunk = 128, .cache_bytes = 24 << 20});
  expect_same(cached, alone, "behind a cached prefix");
  EXPECT_GT(cached[1].cached_tokens, 0);
  expect_same(draw(subject, {.slots = 3, .chunk = 100, .cache_bytes = 24 << 20, .drafts = 3}),
              alone,
              "cache and drafts");
  expect_trainer_alike(subject, alone);
}

}  // namespace
}  // namespace baleen
