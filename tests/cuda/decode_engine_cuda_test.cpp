// The engine on kernels: prompts in passes, answers through captured graphs, drafts by the draft
// layer, all over the pages of the cache. Every text that comes out is run once more by the body in
// float and in double: at the same tokens the kernels must be about as far from double as the body
// in float is.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include "cache/pick_codec.h"
#include "device/cuda_check.h"
#include "narrow_flash_gpu.h"
#include "runner/some_ids_for_tests.h"

namespace baleen::runner {
namespace {

TEST_F(NarrowFlashGpu, AnswersAreAsCloseToDoubleAsTheBodys) {
  Comparison compared;
  KernelEngine engine(*weights_, kWide, 256);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<engine::CollectingSink>> answers;
  int64_t told = 0;
  // Below and over a group, the window, a page; past 64 entries of ratio 4, so that picks count.
  for (const int32_t length : {1, 3, 100, 126, 254, 300, 777}) {
    prompts.push_back(some_ids(length, length));
    answers.push_back(engine.submit(prompts.back(), 160, /*scores=*/length % 2 == 0));
    told += length;
  }
  for (std::size_t i = 0; i < answers.size(); ++i) {
    answers[i]->wait();
    ASSERT_EQ(answers[i]->finish().reason, engine::FinishReason::kLength)
        << answers[i]->finish().error.message;
    ASSERT_NO_FATAL_FAILURE(measure(prompts[i], *answers[i], compared));
  }
  EXPECT_EQ(engine.kernel_rows(), 7 * 159);  // the first one comes with the prompt
  EXPECT_EQ(engine.prompt_tokens(), told);
  expect_close(compared);
}

TEST_F(NarrowFlashGpu, TurnsHitTheCache) {
  KernelEngine kernels(*weights_, kWide, 256);
  Comparison compared;
  std::vector<int32_t> history;
  for (int32_t turn = 0; turn < 6; ++turn) {
    const auto told = static_cast<int64_t>(history.size());
    const std::vector<int32_t> added = some_ids(60 + (turn * 13) % 40, turn);
    history.insert(history.end(), added.begin(), added.end());
    const auto sink = kernels.submit(history, turn == 2 ? 300 : 30);
    sink->wait();
    ASSERT_EQ(sink->finish().reason, engine::FinishReason::kLength) << sink->finish().error.message;
    ASSERT_NO_FATAL_FAILURE(measure(history, *sink, compared));
    if (turn > 0) {
      ASSERT_GE(sink->finish().cached_tokens, told - 1 - 4) << "turn " << turn;
    }
    const std::vector<int32_t> answer = sink->ids();
    history.insert(history.end(), answer.begin(), answer.end());
  }
  expect_close(compared);
}

TEST_F(NarrowFlashGpu, ACrowdWithAbortsOnASmallCacheAnswersAndGivesEveryPageBack) {
  KernelEngine kernels(
      *weights_, {.num_slots = 6, .max_step_tokens = 128, .cache_bytes = 96 << 20}, 64);
  const std::vector<int32_t> shared = some_ids(600, 5);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<engine::CollectingSink>> sinks;
  Comparison compared;
  for (int32_t i = 0; i < 16; ++i) {
    std::vector<int32_t> prompt(shared.begin(), shared.begin() + 60 * (i % 7));
    const std::vector<int32_t> own = some_ids(150 + 9 * i, i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompts.push_back(prompt);
    sinks.push_back(kernels.submit(prompt, 120));
    if (i % 4 == 3) {
      sinks.back()->wait_for_tokens(5, std::chrono::seconds(60));
      kernels.abort_latest();
    }
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->wait();
    const engine::FinishInfo finish = sinks[i]->finish();
    if (i % 4 == 3) {
      EXPECT_EQ(finish.reason, engine::FinishReason::kAbort) << finish.error.message;
    } else {
      ASSERT_EQ(finish.reason, engine::FinishReason::kLength) << finish.error.message;
    }
    ASSERT_NO_FATAL_FAILURE(measure(prompts[i], *sinks[i], compared));
  }
  expect_close(compared);
  for (int32_t i = 0; i < 500 && kernels.engine().stats().num_running > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(kernels.engine().stats().num_used_tokens, 0);
}

TEST_F(NarrowFlashGpu, DraftsAreMadeAndVerifiedByKernels) {
  RunnerConfig runner = kWide;
  runner.drafts.max_drafts = 3;
  KernelEngine engine(*weights_, runner, 256);
  Comparison compared;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<engine::CollectingSink>> answers;
  for (const int32_t length : {1, 100, 253, 300, 500}) {
    prompts.push_back(some_ids(length, length));
    answers.push_back(engine.submit(prompts.back(), 140));
  }
  int64_t drafted = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    answers[i]->wait();
    ASSERT_EQ(answers[i]->finish().reason, engine::FinishReason::kLength)
        << answers[i]->finish().error.message;
    ASSERT_NO_FATAL_FAILURE(measure(prompts[i], *answers[i], compared));
    drafted += answers[i]->finish().drafts.drafted;
  }
  EXPECT_GT(engine.kernel_rows(), 200);
  // A model that learned nothing seldom guesses right; whether the guesses are the body's the check
  // at start says.
  EXPECT_GT(drafted, 1000);
  expect_close(compared);
}

/// Share of expert ids, and of picked entries where a query leaves some out, that two records of
/// the same tokens have in common.
struct Agreement {
  double routes = 0.0;
  double picks = 0.0;
};

Agreement agreement(const cache::ChoiceLayout& layout,
                    const cache::ChoiceRecords& a,
                    const std::vector<uint8_t>& routes,
                    const std::vector<uint8_t>& picks) {
  const auto share = [](const auto& left, const auto& right) {
    std::vector<int32_t> common;
    std::set_intersection(
        left.begin(), left.end(), right.begin(), right.end(), std::back_inserter(common));
    return static_cast<double>(common.size());
  };
  EXPECT_EQ(a.routes.size(), routes.size());
  EXPECT_EQ(a.picks.size(), picks.size());
  Agreement out;
  const auto top = static_cast<std::size_t>(layout.experts_per_token);
  for (std::size_t at = 0; at + top <= routes.size(); at += top) {
    out.routes += share(std::span(a.routes).subspan(at, top), std::span(routes).subspan(at, top));
  }
  out.routes /= static_cast<double>(routes.size());
  double picked = 0.0;
  std::size_t at = 0;
  std::vector<int32_t> left;
  std::vector<int32_t> right;
  for (int32_t position = 0; position < a.count; ++position) {
    const int32_t visible = layout.visible_entries(position);
    for (std::size_t layer = 0; visible > layout.topk && layer < layout.picking_layers.size();
         ++layer) {
      const std::size_t used =
          cache::decode_picks(std::span(a.picks).subspan(at), visible, layout.topk, left);
      cache::decode_picks(std::span(picks).subspan(at), visible, layout.topk, right);
      at += used;
      out.picks += share(left, right);
      picked += layout.topk;
    }
  }
  EXPECT_EQ(at, picks.size());
  out.picks /= picked;
  return out;
}

TEST_F(NarrowFlashGpu, ChoicesAreAsCloseToDoubleAsTheBodys) {
  cache::ChoiceRecords of_kernels;
  std::vector<int32_t> ids = some_ids(777, 9);
  {
    RunnerConfig runner = kWide;
    runner.drafts.max_drafts = 3;
    KernelEngine engine("checkpoint", runner, 256, /*record_choices=*/true);
    const auto answer = engine.submit(ids, 120);
    answer->wait();
    ASSERT_EQ(answer->finish().reason, engine::FinishReason::kLength)
        << answer->finish().error.message;
    of_kernels = answer->finish().choices.value();
    const std::vector<int32_t> told = answer->ids();
    ids.insert(ids.end(), told.begin(), told.end() - 1);  // the last token has not run
  }
  ASSERT_EQ(of_kernels.first_position, 0);
  ASSERT_EQ(of_kernels.count, static_cast<int32_t>(ids.size()));
  model::ForwardConfig forward;
  forward.device = "cuda";
  forward.record_choices = true;
  const auto choices_of = [&](model::Model model) {
    model::Sequence sequence = model.new_sequence();
    model::ForwardOutput output;
    const model::RowInput row{.sequence = &sequence, .ids = std::span<const int32_t>(ids)};
    model.forward({&row, 1}, output);
    return output.choices;
  };
  const model::ForwardChoices in_float = choices_of(model::Model(*weights_, forward));
  model::ModelParameters doubles = *weights_;
  model::convert_parameters(doubles, at::kDouble, at::Device(at::kCUDA, 0));
  forward.compute = model::ComputeType::kFloat64;
  const model::ForwardChoices in_double = choices_of(model::Model(std::move(doubles), forward));
  const cache::ChoiceLayout& layout = reference_->choice_layout();
  cache::ChoiceRecords body{.routes = in_float.routes, .picks = in_float.picks};
  body.count = of_kernels.count;
  const Agreement kernels = agreement(layout, of_kernels, in_double.routes, in_double.picks);
  const Agreement float_body = agreement(layout, body, in_double.routes, in_double.picks);
  std::printf("choices that are those in double: kernels routes %.4f picks %.4f, body %.4f %.4f\n",
              kernels.routes,
              kernels.picks,
              float_body.routes,
              float_body.picks);
  EXPECT_GE(1.0 - float_body.routes, 0.5 * (1.0 - kernels.routes));
  EXPECT_GE(1.0 - float_body.picks, 0.5 * (1.0 - kernels.picks));
}

// A device of 8 GiB, as it were: all but that stays free. Answers do not know how large the cache
// is.
TEST_F(NarrowFlashGpu, TheCacheTakesWhatTheDeviceHasLeft) {
  constexpr int64_t kDevice = int64_t{8} << 30;
  const auto free_bytes = [] {
    std::size_t free = 0;
    std::size_t total = 0;
    BALEEN_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free);
  };
  at::getDeviceAllocator(at::kCUDA)->emptyCache();
  RunnerConfig runner = kWide;
  runner.drafts.max_drafts = 3;
  std::vector<int32_t> expected;
  {
    KernelEngine engine("reference+invariant", runner, 256);
    const auto answer = engine.submit(some_ids(700, 5), 60);
    answer->wait();
    expected = answer->ids();
  }
  at::getDeviceAllocator(at::kCUDA)->emptyCache();
  runner.cache_bytes = 64 << 20;
  runner.fill_device = true;
  runner.spare_bytes = free_bytes() - kDevice;
  KernelEngine engine("reference+invariant", runner, 256);
  const int64_t left = free_bytes() - runner.spare_bytes;
  std::printf("of %.0f MB, %.0f MB of them the path's, %.1f MB are left\n",
              static_cast<double>(kDevice) * 1e-6,
              static_cast<double>(engine.path_bytes()) * 1e-6,
              static_cast<double>(left) * 1e-6);
  EXPECT_LE(std::abs(left), kDevice / 100);
  const auto answer = engine.submit(some_ids(700, 5), 60);
  answer->wait();
  EXPECT_EQ(answer->ids(), expected);
}

// In either order: who comes back first leaves the room that the other had.
TEST_F(NarrowFlashGpu, AReleasedCacheAndReleasedWeightsFillTheDeviceAgain) {
  at::getDeviceAllocator(at::kCUDA)->emptyCache();
  std::size_t free_at_start = 0;
  std::size_t total = 0;
  BALEEN_CUDA_CHECK(cudaMemGetInfo(&free_at_start, &total));
  RunnerConfig runner = kWide;
  runner.cache_bytes = 64 << 20;
  runner.fill_device = true;
  runner.spare_bytes = static_cast<int64_t>(free_at_start) - (int64_t{4} << 30);
  KernelEngine engine("reference+invariant", runner, 256);
  const auto answer_now = [&engine] {
    const auto answer = engine.submit(some_ids(700, 5), 40);
    answer->wait();
    return answer->ids();
  };
  const std::vector<int32_t> expected = answer_now();
  const int64_t rows = engine.kernel_rows();
  for (const bool cache_first : {true, false}) {
    const engine::MemoryParts first{.cache = cache_first, .weights = !cache_first};
    ASSERT_TRUE(engine.engine().release_memory({.cache = true, .weights = true}).ok());
    Status status = engine.engine().resume_memory(first);
    ASSERT_TRUE(status.ok()) << status.message;
    status = engine.engine().resume_memory({.cache = true, .weights = true});
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(answer_now(), expected);
  }
  EXPECT_EQ(engine.kernel_rows(), 3 * rows) << "on the path again";
}

TEST_F(NarrowFlashGpu, ThePlanIsWhatIsAllocated) {
  for (const int32_t drafts : {0, 3}) {
    for (const bool records : {false, true}) {
      RunnerConfig runner = kWide;
      runner.drafts.max_drafts = drafts;
      KernelEngine engine("checkpoint", runner, 256, records);
      const KernelDecodeNeeds needs =
          kernel_decode_needs(body_->config(),
                              {.num_slots = runner.num_slots,
                               .max_context = kMostContext,
                               .max_drafts = drafts,
                               .max_step_tokens = runner.max_step_tokens,
                               .record_choices = records},
                              device::multiprocessor_count());
      weights::OpenOptions options;
      options.load_mtp = drafts > 0;
      const weights::Checkpoint files = weights::Checkpoint::open(narrow_flash_folder(), options);
      const auto planned =
          static_cast<double>(needs.total() + static_cast<int64_t>(files.total_bytes()));
      const auto allocated = static_cast<double>(engine.path_bytes());
      std::printf("drafts %d records %d: planned %.1f MB, allocated %.1f MB\n",
                  drafts,
                  records ? 1 : 0,
                  planned * 1e-6,
                  allocated * 1e-6);
      // Workspaces to the byte; weights as stored, of which tables and norms change their type.
      EXPECT_NEAR(planned, allocated, 0.01 * allocated);
    }
  }
}

TEST_F(NarrowFlashGpu, ContextsOfTheSecondShapeRun) {
  Comparison compared;
  KernelEngine engine(
      *weights_, {.num_slots = 2, .max_step_tokens = 1024, .cache_bytes = 512 << 20}, 1024);
  const std::vector<int32_t> prompt = some_ids(4080, 2);  // crosses 4,096 in the answer
  const auto answer = engine.submit(prompt, 60);
  answer->wait();
  ASSERT_EQ(answer->finish().reason, engine::FinishReason::kLength)
      << answer->finish().error.message;
  ASSERT_NO_FATAL_FAILURE(measure(prompt, *answer, compared));
  EXPECT_EQ(engine.prompt_tokens(), 4080);
  expect_close(compared);
}

}  // namespace
}  // namespace baleen::runner
