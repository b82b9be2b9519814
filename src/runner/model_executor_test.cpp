#include "runner/model_executor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "model/initialize.h"
#include "runner/some_ids_for_tests.h"
#include "text/tokenizer.h"
#include "weights/model_presets.h"

namespace baleen::runner {
namespace {

using engine::BatchPlan;
using engine::RowKind;
using engine::SamplingRow;
using engine::StepResult;

/// Random weights, far enough from uniform that draws differ; nothing is rounded.
model::Model random_model(uint64_t seed = 1) {
  ModelConfig config = weights::tiny_config();
  model::FreshOptions fresh;
  fresh.seed = seed;
  fresh.matrix_std = 0.15;
  fresh.vector_noise = 0.1;
  model::ForwardConfig forward;
  forward.numerics = "plain";
  forward.max_context = 256;
  return {model::make_fresh_parameters(config, fresh, at::TensorOptions(at::kFloat)), forward};
}

/// Builds one step by hand.
struct PlanWriter {
  BatchPlan plan;

  void begin(int64_t step) {
    plan = {};
    plan.step = step;
  }
  void row(int32_t slot,
           int32_t first,
           std::vector<int32_t> ids,
           const SamplingRow* sampling,
           bool score = false) {
    engine::BatchRow& row = plan.rows.emplace_back();
    row.slot = RequestSlot(slot);
    row.kind =
        sampling != nullptr && ids.size() == 1 && first > 0 ? RowKind::kDecode : RowKind::kPrefill;
    row.first_position = TokenPos(first);
    row.num_tokens = static_cast<int32_t>(ids.size());
    row.ids_offset = static_cast<int32_t>(plan.ids.size());
    plan.ids.insert(plan.ids.end(), ids.begin(), ids.end());
    if (first == 0) {
      plan.resets.push_back({.slot = row.slot, .first_position = 0, .generated = {}});
    }
    if (sampling != nullptr) {
      row.sampling_index = static_cast<int32_t>(plan.sampling.size());
      plan.sampling.push_back(*sampling);
    }
    row.input_logprobs_from = score ? 0 : -1;
  }
};

StepResult run(ModelExecutor& executor, const BatchPlan& plan) {
  return executor.wait(executor.submit(plan, [](int32_t, std::span<uint32_t>) {}));
}

/// Prompt in chunks of `chunk`, then `count` tokens one by one, alone in `slot`.
std::vector<int32_t> generate(ModelExecutor& executor,
                              const std::vector<int32_t>& prompt,
                              const SamplingRow& sampling,
                              int32_t count,
                              int32_t slot = 0,
                              int32_t chunk = 1000) {
  PlanWriter writer;
  std::vector<int32_t> out;
  const auto length = static_cast<int32_t>(prompt.size());
  StepResult result;
  for (int32_t begin = 0; begin < length; begin += chunk) {
    const int32_t end = std::min(begin + chunk, length);
    writer.begin(begin);
    writer.row(slot,
               begin,
               {prompt.begin() + begin, prompt.begin() + end},
               end == length ? &sampling : nullptr);
    result = run(executor, writer.plan);
  }
  out.push_back(result.rows[0].ids.at(0));
  while (static_cast<int32_t>(out.size()) < count) {
    writer.begin(1000 + static_cast<int64_t>(out.size()));
    writer.row(slot, length + static_cast<int32_t>(out.size()) - 1, {out.back()}, &sampling);
    out.push_back(run(executor, writer.plan).rows[0].ids.at(0));
  }
  return out;
}

TEST(ModelExecutorTest, GreedyTokensAreTheLargestLogitsOfThePlainForward) {
  const std::vector<int32_t> prompt = some_ids(21, 1);
  model::Model model = random_model();
  model::Sequence sequence = model.new_sequence();
  model::ForwardOutput output;
  std::vector<int32_t> ids = prompt;
  std::vector<int32_t> expected;
  for (int step = 0; step < 12; ++step) {
    const std::vector<model::RowInput> rows = {
        {.sequence = &sequence, .first_position = sequence.num_tokens(), .ids = ids}};
    model.forward(rows, output);
    const auto logits = output.row(0);
    expected.push_back(
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    ids = {expected.back()};
  }
  ModelExecutor executor(random_model(), {.num_slots = 3, .max_step_tokens = 64}, "tiny");
  SamplingRow greedy;
  greedy.temperature = 0.0F;
  EXPECT_EQ(generate(executor, prompt, greedy, 12), expected);
  EXPECT_EQ(generate(executor, prompt, greedy, 12, 2, 4), expected);  // other slot, in chunks
  EXPECT_EQ(generate(executor, prompt, greedy, 12), expected);        // the slot used again
}

TEST(ModelExecutorTest, SeedGivesOneTextInAnyCompany) {
  const std::vector<int32_t> prompt = some_ids(9, 2);
  ModelExecutor executor(random_model(), {.num_slots = 4, .max_step_tokens = 64}, "tiny");
  SamplingRow sampling;
  sampling.seed = 99;
  sampling.temperature = 1.2F;
  const std::vector<int32_t> alone = generate(executor, prompt, sampling, 10);
  // The same request as the last of four rows, in another slot, beside others that started earlier.
  PlanWriter writer;
  SamplingRow other;
  other.seed = 5;
  std::vector<std::vector<int32_t>> texts = {some_ids(3, 3), some_ids(17, 4), some_ids(5, 5)};
  writer.begin(0);
  for (int32_t slot = 0; slot < 3; ++slot) {
    writer.row(slot, 0, texts[static_cast<size_t>(slot)], &other);
  }
  StepResult result = run(executor, writer.plan);
  std::vector<int32_t> text = prompt;
  std::vector<int32_t> out;
  for (int step = 1; step <= 10; ++step) {
    writer.begin(step);
    for (int32_t slot = 0; slot < 3; ++slot) {
      auto& all = texts[static_cast<size_t>(slot)];
      all.push_back(result.rows[static_cast<size_t>(slot)].ids.at(0));
      writer.row(slot, static_cast<int32_t>(all.size()) - 1, {all.back()}, &other);
    }
    if (out.empty()) {
      writer.row(3, 0, prompt, &sampling);
    } else {
      writer.row(3, static_cast<int32_t>(text.size()) - 1, {text.back()}, &sampling);
    }
    result = run(executor, writer.plan);
    out.push_back(result.rows[3].ids.at(0));
    text.push_back(out.back());
  }
  EXPECT_EQ(out, alone);
  sampling.seed = 100;
  EXPECT_NE(generate(executor, prompt, sampling, 10), alone);
  sampling.seed = 99;
  sampling.sample_index = 1;
  EXPECT_NE(generate(executor, prompt, sampling, 10), alone);
}

TEST(ModelExecutorTest, PromptLogprobsDoNotDependOnChunks) {
  const std::vector<int32_t> prompt = some_ids(23, 6);
  model::Model model = random_model();
  model::Sequence sequence = model.new_sequence();
  model::ForwardOutput output;
  const std::vector<model::RowInput> rows = {
      {.sequence = &sequence, .ids = prompt, .logits = model::LogitsWanted::kAll}};
  model.forward(rows, output);
  ModelExecutor executor(random_model(), {.num_slots = 1, .max_step_tokens = 64}, "tiny");
  for (const int32_t chunk : {1, 4, 5, 22, 23}) {
    std::vector<engine::TokenLogprob> scored;
    PlanWriter writer;
    for (int32_t begin = 0; begin < 23; begin += chunk) {
      const int32_t end = std::min(begin + chunk, 23);
      writer.begin(begin);
      writer.row(0, begin, {prompt.begin() + begin, prompt.begin() + end}, nullptr, true);
      const StepResult result = run(executor, writer.plan);
      EXPECT_TRUE(result.rows[0].ids.empty());
      const auto& part = result.rows[0].input_logprobs;
      scored.insert(scored.end(), part.begin(), part.end());
    }
    ASSERT_EQ(scored.size(), 22U) << "chunk " << chunk;
    for (int32_t p = 1; p < 23; ++p) {
      const auto logits = output.row(p - 1);
      const int32_t id = prompt[static_cast<size_t>(p)];
      double sum = 0.0;
      for (const float logit : logits) {
        sum += std::exp(double{logit});
      }
      EXPECT_EQ(scored[static_cast<size_t>(p - 1)].id, id);
      // Float32 logits of other matrix shapes: 1e-6 of their size, which is about 10.
      EXPECT_NEAR(scored[static_cast<size_t>(p - 1)].logprob,
                  logits[static_cast<size_t>(id)] - std::log(sum),
                  2e-4);
    }
  }
}

TEST(ModelExecutorTest, PenaltiesCountTheTokensOfTheirOwnSequence) {
  ModelExecutor executor(random_model(), {.num_slots = 2, .max_step_tokens = 64}, "tiny");
  SamplingRow sampling;
  sampling.temperature = 0.0F;
  sampling.presence_penalty = 2.0F;
  sampling.frequency_penalty = 2.0F;
  sampling.logit_bias = {{7, 1000.0F}, {8, 999.0F}, {9, 995.0F}};
  // x(7) = 1000 - 4k would stay ahead until 4k > 5: 7 and 8 alternate, then 9 comes in.
  const std::vector<int32_t> prompt(5, 7);  // prompt tokens do not count
  const std::vector<int32_t> first = generate(executor, prompt, sampling, 6, 0);
  EXPECT_EQ(first[0], 7);
  EXPECT_NE(first[1], 7);
  EXPECT_GT(std::count(first.begin(), first.end(), 9), 0);
  EXPECT_EQ(generate(executor, prompt, sampling, 6, 1), first);
  EXPECT_EQ(generate(executor, prompt, sampling, 6, 0), first);  // counts begin anew
}

TEST(ModelExecutorTest, MaskForcedAndForbiddenIdsAreKept) {
  ModelExecutor executor(random_model(), {.num_slots = 1, .max_step_tokens = 64}, "tiny");
  PlanWriter writer;
  SamplingRow sampling;
  sampling.bitmask_row = 4;
  sampling.forbidden_ids = {40};
  writer.begin(0);
  writer.row(0, 0, {1, 2}, &sampling);
  int32_t asked = -1;
  const auto ticket = executor.submit(writer.plan, [&](int32_t row, std::span<uint32_t> bits) {
    asked = row;
    bits[1] = 0x300;  // 40 and 41
  });
  EXPECT_EQ(executor.wait(ticket).rows[0].ids, std::vector<int32_t>({41}));
  EXPECT_EQ(asked, 4);
  sampling = {};
  sampling.forced_id = 3;
  sampling.want_logprobs = true;
  sampling.top_logprobs = 2;
  writer.begin(1);
  writer.row(0, 2, {41}, &sampling);
  const StepResult result = run(executor, writer.plan);
  EXPECT_EQ(result.rows[0].ids, std::vector<int32_t>({3}));
  ASSERT_EQ(result.rows[0].logprobs.size(), 1U);
  ASSERT_EQ(result.rows[0].top_logprobs[0].size(), 2U);
  EXPECT_LT(result.rows[0].logprobs[0], 0.0F);
}

TEST(ModelExecutorTest, NanWeightsAreFlaggedNotDrawn) {
  ModelConfig config = weights::tiny_config();
  model::ModelParameters params =
      model::make_fresh_parameters(config, {.seed = 1}, at::TensorOptions(at::kFloat));
  params.final_head.norm.fill_(std::numeric_limits<float>::quiet_NaN());
  model::ForwardConfig forward;
  forward.numerics = "plain";
  forward.max_context = 64;
  ModelExecutor executor(
      model::Model(std::move(params), forward), {.num_slots = 1, .max_step_tokens = 64}, "tiny");
  PlanWriter writer;
  const SamplingRow sampling;
  writer.begin(0);
  writer.row(0, 0, {1, 2}, &sampling);
  const StepResult result = run(executor, writer.plan);
  EXPECT_TRUE(result.rows[0].nan_logits);
  EXPECT_TRUE(result.rows[0].ids.empty());
}

TEST(ModelExecutorTest, RefusesAConfigOutOfRange) {
  EXPECT_THROW(ModelExecutor(random_model(), {.num_slots = 0}, "tiny"), ConfigError);
  EXPECT_THROW(ModelExecutor(random_model(), {.num_slots = 8, .max_step_tokens = 7}, "tiny"),
               ConfigError);
}

TEST(ModelExecutorTest, EngineOverModelAnswersManyAtOnceAsOneByOne) {
  const auto tokenizer = text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json");
  const auto answer_all = [&](int32_t num_slots, bool one_by_one) {
    MetricRegistry metrics;
    engine::EngineConfig config;
    config.max_prefill_chunk = 7;
    engine::Engine engine(
        config,
        std::make_unique<ModelExecutor>(random_model(), RunnerConfig{num_slots, 32}, "tiny"),
        tokenizer,
        metrics);
    engine.start();
    std::vector<std::shared_ptr<engine::CollectingSink>> sinks;
    std::vector<std::vector<int32_t>> answers;
    for (int32_t i = 0; i < 8; ++i) {
      engine::GenerationRequest request;
      request.id = std::to_string(i);
      request.prompt = some_ids(5 + 3 * i, i);
      request.max_new_tokens = 8;
      request.ignore_eos = true;
      request.sampling.seed = 1000 + static_cast<uint64_t>(i);
      sinks.push_back(std::make_shared<engine::CollectingSink>());
      EXPECT_TRUE(engine.submit(std::move(request), sinks.back()).ok());
      if (one_by_one) {
        sinks.back()->wait();
      }
    }
    for (const auto& sink : sinks) {
      sink->wait();
      answers.push_back(sink->ids());
      EXPECT_EQ(answers.back().size(), 8U);
    }
    engine.stop();
    return answers;
  };
  EXPECT_EQ(answer_all(4, false), answer_all(1, true));
}

}  // namespace
}  // namespace baleen::runner
