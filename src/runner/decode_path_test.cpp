// The executor with a decode path beside the model's body. The path here is a body of its own over
// the same pools that forgets everything between two steps, so it lives on what the pages and rings
// hold, as kernels do. In fixed order nothing may differ from an engine without it: not over turns,
// shared prefixes and chunks, not when sequences are preempted in the middle of their answers.

#include "runner/decode_path.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "runner/forgetful_path_test.h"
#include "runner/model_executor.h"
#include "runner/some_ids_for_tests.h"
#include "text/tokenizer.h"

namespace baleen::runner {
namespace {

constexpr int64_t kRoomy = 64 << 20;
constexpr int64_t kSpare = 3 << 20;

class PathBench {
 public:
  PathBench(int32_t slots,
            int64_t cache_bytes,
            int64_t path_context,
            int32_t drafts = 0,
            bool prompts = false,
            bool record_choices = false,
            int64_t free_bytes = -1) {
    use.free_bytes = free_bytes;
    RunnerConfig runner{.num_slots = slots,
                        .max_step_tokens = 128,
                        .cache_bytes = cache_bytes,
                        .fill_device = free_bytes >= 0,
                        .spare_bytes = kSpare,
                        .paint_pages = true,
                        .drafts = {.max_drafts = drafts}};
    if (path_context > 0) {
      runner.decode_path = [this, path_context, prompts](const DecodePathContext& context) {
        return std::make_unique<ForgetfulPath>(context, path_context, use, prompts);
      };
    }
    engine::EngineConfig config;
    config.max_prefill_chunk = prompts ? 100 : 64;  // 100: points are captured inside of chunks
    config.adaptive_drafts = false;
    records_ = record_choices;
    auto executor =
        std::make_unique<ModelExecutor>(fixed_order_model(drafts, record_choices), runner, "tiny");
    executor_ = executor.get();
    engine_ = std::make_unique<engine::Engine>(
        config,
        std::move(executor),
        text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
        metrics_);
    engine_->start();
  }
  ~PathBench() { engine_->stop(); }

  std::shared_ptr<engine::CollectingSink> submit(std::vector<int32_t> prompt,
                                                 int32_t max_new,
                                                 float temperature = 0.0F,
                                                 bool penalties = false,
                                                 int32_t priority = 0,
                                                 bool scores = false) {
    engine::GenerationRequest request;
    request.id = std::to_string(next_++);
    request.prompt = std::move(prompt);
    request.max_new_tokens = max_new;
    request.ignore_eos = true;
    request.priority = priority;
    request.want_prompt_logprobs = scores;
    request.want_routes = records_;
    request.want_picks = records_;
    request.want_logprobs = true;
    request.sampling.temperature = temperature;
    request.sampling.frequency_penalty = penalties ? 0.5F : 0.0F;
    request.sampling.seed = static_cast<uint64_t>(next_);
    request.top_logprobs = next_ % 3;
    auto sink = std::make_shared<engine::CollectingSink>();
    const Status status = engine_->submit(std::move(request), sink);
    EXPECT_TRUE(status.ok()) << status.message;
    return sink;
  }
  const engine::Engine& engine() const { return *engine_; }
  /// Of the executor, while no request runs.
  int64_t rows_of_path() const { return executor_->rows_of_decode_path(); }
  int64_t prompt_tokens_of_path() const { return executor_->prompt_tokens_of_path(); }

  PathUse use;

 private:
  MetricRegistry metrics_;
  const ModelExecutor* executor_ = nullptr;
  std::unique_ptr<engine::Engine> engine_;
  bool records_ = false;
  int next_ = 0;
};

void expect_equal(const engine::CollectingSink& a,
                  const engine::CollectingSink& b,
                  const std::string& what) {
  ASSERT_EQ(a.finish().reason, b.finish().reason) << what << a.finish().error.message;
  ASSERT_EQ(a.ids(), b.ids()) << what;
  const auto left = a.tokens();
  const auto right = b.tokens();
  for (size_t i = 0; i < left.size(); ++i) {
    ASSERT_EQ(left[i].logprob, right[i].logprob) << what << " token " << i;
    ASSERT_EQ(left[i].top_logprobs.size(), right[i].top_logprobs.size()) << what << " token " << i;
    for (size_t k = 0; k < left[i].top_logprobs.size(); ++k) {
      ASSERT_EQ(left[i].top_logprobs[k].id, right[i].top_logprobs[k].id) << what << " token " << i;
    }
  }
}

TEST(DecodePathTest, TurnsGiveTheBitsOfTheBodyAlone) {
  PathBench mixed(2, kRoomy, 3000);
  PathBench plain(2, kRoomy, 0);
  std::vector<int32_t> history;
  int64_t generated = 0;
  for (int32_t turn = 0; turn < 8; ++turn) {
    const auto told = static_cast<int64_t>(history.size());
    const std::vector<int32_t> added = some_ids(50 + (turn * 13) % 40, turn);
    history.insert(history.end(), added.begin(), added.end());
    // Answers of more than a window page, so that a turn resumes at a point that the path reached.
    const int32_t tokens = turn == 2 ? 300 : 9;
    const auto a = mixed.submit(history, tokens);
    const auto b = plain.submit(history, tokens);
    a->wait();
    b->wait();
    ASSERT_NO_FATAL_FAILURE(expect_equal(*a, *b, "turn " + std::to_string(turn)));
    ASSERT_EQ(a->finish().cached_tokens, b->finish().cached_tokens) << "turn " << turn;
    if (turn > 0) {
      ASSERT_GE(a->finish().cached_tokens, told - 1 - 4) << "turn " << turn;
    }
    const std::vector<int32_t> answer = a->ids();
    history.insert(history.end(), answer.begin(), answer.end());
    generated += tokens - 1;  // the first one comes with the prompt
  }
  EXPECT_EQ(mixed.rows_of_path(), generated);
}

TEST(DecodePathTest, ACrowdThatIsPreemptedGivesTheBitsOfTheBodyAlone) {
  PathBench mixed(6, bytes_of_pages(9), 3000);
  PathBench plain(6, kRoomy, 0);
  std::vector<std::shared_ptr<engine::CollectingSink>> a;
  std::vector<std::shared_ptr<engine::CollectingSink>> b;
  for (int32_t i = 0; i < 8; ++i) {
    const std::vector<int32_t> prompt = some_ids(200 + 17 * i, i % 3);
    const float temperature = i % 4 < 2 ? 0.0F : 0.9F;
    if (i == 6) {
      // The last two are urgent: with all slots taken they push others out in mid-answer.
      ASSERT_TRUE(a[0]->wait_for_tokens(5, std::chrono::seconds(60)));
    }
    const int32_t priority = i < 6 ? 0 : 100;
    a.push_back(mixed.submit(prompt, 120, temperature, i > 5, priority));
    b.push_back(plain.submit(prompt, 120, temperature, i > 5, priority));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    a[i]->wait();
    b[i]->wait();
    ASSERT_NO_FATAL_FAILURE(expect_equal(*a[i], *b[i], "request " + std::to_string(i)));
  }
  EXPECT_GT(mixed.engine().stats().num_preemptions, 0);
  EXPECT_GT(mixed.use.most_rows, 1);
  EXPECT_GT(mixed.use.draws, 100);
  EXPECT_GT(mixed.use.rows - mixed.use.draws, 100);
}

TEST(DecodePathTest, DraftsVerifiedOnThePathGiveTheBitsOfTheBodyAlone) {
  PathBench mixed(4, kRoomy, 3000, /*drafts=*/3);
  PathBench plain(4, kRoomy, 0, /*drafts=*/3);
  std::vector<std::vector<int32_t>> texts(6);
  for (int32_t turn = 0; turn < 3; ++turn) {
    std::vector<std::shared_ptr<engine::CollectingSink>> a;
    std::vector<std::shared_ptr<engine::CollectingSink>> b;
    for (int32_t i = 0; i < 6; ++i) {
      std::vector<int32_t>& text = texts[static_cast<size_t>(i)];
      const std::vector<int32_t> added = some_ids(90 + 17 * i, i + turn);
      text.insert(text.end(), added.begin(), added.end());
      const float temperature = i % 3 == 0 ? 0.9F : 0.0F;
      a.push_back(mixed.submit(text, 60, temperature, i == 5));
      b.push_back(plain.submit(text, 60, temperature, i == 5));
    }
    for (size_t i = 0; i < a.size(); ++i) {
      a[i]->wait();
      b[i]->wait();
      ASSERT_NO_FATAL_FAILURE(expect_equal(
          *a[i], *b[i], "turn " + std::to_string(turn) + " request " + std::to_string(i)));
      const std::vector<int32_t> answer = a[i]->ids();
      texts[i].insert(texts[i].end(), answer.begin(), answer.end());
    }
  }
  EXPECT_GT(mixed.use.verified, 100);
}

TEST(DecodePathTest, PositionsBeyondThePathRunInTheBody) {
  PathBench mixed(2, kRoomy, /*path_context=*/100);
  PathBench plain(2, kRoomy, 0);
  const auto a = mixed.submit(some_ids(90, 4), 40);
  const auto b = plain.submit(some_ids(90, 4), 40);
  a->wait();
  b->wait();
  ASSERT_NO_FATAL_FAILURE(expect_equal(*a, *b, "long"));
  EXPECT_EQ(mixed.rows_of_path(), 10);  // positions 90 .. 99
}

// With prompts on the path too, nothing but positions beyond it may be the body's.
TEST(DecodePathTest, PromptsOnThePathGiveTheBitsOfTheBodyAlone) {
  PathBench mixed(4, kRoomy, 3000, /*drafts=*/0, /*prompts=*/true);
  PathBench plain(4, kRoomy, 0);
  std::vector<std::vector<int32_t>> texts(5);
  int64_t told = 0;
  for (int32_t turn = 0; turn < 4; ++turn) {
    std::vector<std::shared_ptr<engine::CollectingSink>> a;
    std::vector<std::shared_ptr<engine::CollectingSink>> b;
    for (int32_t i = 0; i < 5; ++i) {
      std::vector<int32_t>& text = texts[static_cast<size_t>(i)];
      // Common beginnings, so that points inside of prompts are captured and branched from.
      const std::vector<int32_t> added = some_ids(150 + 71 * i, turn == 0 ? i % 2 : i + turn);
      text.insert(text.end(), added.begin(), added.end());
      a.push_back(mixed.submit(text, 40, i == 3 ? 0.9F : 0.0F, i == 4));
      b.push_back(plain.submit(text, 40, i == 3 ? 0.9F : 0.0F, i == 4));
    }
    for (size_t i = 0; i < a.size(); ++i) {
      a[i]->wait();
      b[i]->wait();
      ASSERT_NO_FATAL_FAILURE(expect_equal(
          *a[i], *b[i], "turn " + std::to_string(turn) + " request " + std::to_string(i)));
      told += static_cast<int64_t>(texts[i].size()) - a[i]->finish().cached_tokens;
      const std::vector<int32_t> answer = a[i]->ids();
      texts[i].insert(texts[i].end(), answer.begin(), answer.end());
    }
  }
  EXPECT_EQ(mixed.prompt_tokens_of_path(), told);
  EXPECT_EQ(mixed.rows_of_path(), 4 * 5 * 39);
}

TEST(DecodePathTest, DraftRowsOfPromptsOnThePathAreTheBodys) {
  PathBench mixed(4, kRoomy, 3000, /*drafts=*/3, /*prompts=*/true);
  PathBench plain(4, kRoomy, 0, /*drafts=*/3);
  std::vector<std::vector<int32_t>> texts(3);
  int64_t accepted = 0;
  for (int32_t turn = 0; turn < 3; ++turn) {
    for (int32_t i = 0; i < 3; ++i) {
      std::vector<int32_t>& text = texts[static_cast<size_t>(i)];
      const std::vector<int32_t> added = some_ids(130 + 57 * i, turn == 0 ? 0 : i + turn);
      text.insert(text.end(), added.begin(), added.end());
      const auto a = mixed.submit(text, 60);
      const auto b = plain.submit(text, 60);
      a->wait();
      b->wait();
      const std::string what = "turn " + std::to_string(turn) + " text " + std::to_string(i);
      ASSERT_NO_FATAL_FAILURE(expect_equal(*a, *b, what));
      // Other draft rows would give other guesses, of which others stood.
      EXPECT_EQ(a->finish().drafts.drafted, b->finish().drafts.drafted) << what;
      EXPECT_EQ(a->finish().drafts.accepted, b->finish().drafts.accepted) << what;
      accepted += a->finish().drafts.accepted;
      const std::vector<int32_t> answer = a->ids();
      text.insert(text.end(), answer.begin(), answer.end());
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(mixed.use.verified, 50);
  EXPECT_GT(mixed.use.prompt_parts, 12);
  EXPECT_GT(mixed.use.draft_rows, 3 * 3 * 130);  // those of prompts too
}

TEST(DecodePathTest, ChoicesMadeOnThePathAreTheBodys) {
  for (const int32_t drafts : {0, 3}) {
    PathBench mixed(3, kRoomy, 3000, drafts, /*prompts=*/true, /*record_choices=*/true);
    PathBench plain(3, kRoomy, 0, drafts, /*prompts=*/false, /*record_choices=*/true);
    std::vector<std::vector<int32_t>> texts(4);
    for (int32_t turn = 0; turn < 2; ++turn) {
      std::vector<std::shared_ptr<engine::CollectingSink>> a;
      std::vector<std::shared_ptr<engine::CollectingSink>> b;
      for (int32_t i = 0; i < 4; ++i) {
        std::vector<int32_t>& text = texts[static_cast<size_t>(i)];
        const std::vector<int32_t> added = some_ids(140 + 91 * i, turn == 0 ? i % 2 : i);
        text.insert(text.end(), added.begin(), added.end());
        a.push_back(mixed.submit(text, 30, 0.0F, false, 0, /*scores=*/i == 1));
        b.push_back(plain.submit(text, 30, 0.0F, false, 0, /*scores=*/i == 1));
      }
      for (size_t i = 0; i < a.size(); ++i) {
        a[i]->wait();
        b[i]->wait();
        const std::string what = "drafts " + std::to_string(drafts) + " turn " +
                                 std::to_string(turn) + " request " + std::to_string(i);
        ASSERT_NO_FATAL_FAILURE(expect_equal(*a[i], *b[i], what));
        ASSERT_TRUE(a[i]->finish().choices && b[i]->finish().choices) << what;
        const cache::ChoiceRecords left = *a[i]->finish().choices;
        const cache::ChoiceRecords right = *b[i]->finish().choices;
        EXPECT_EQ(left.first_position, right.first_position) << what;
        EXPECT_EQ(left.count, static_cast<int32_t>(texts[i].size()) + 29) << what;
        EXPECT_EQ(left.count, right.count) << what;
        EXPECT_EQ(left.routes, right.routes) << what;
        EXPECT_EQ(left.picks, right.picks) << what;
        const std::vector<int32_t> answer = a[i]->ids();
        texts[i].insert(texts[i].end(), answer.begin(), answer.end());
      }
    }
    EXPECT_GT(mixed.prompt_tokens_of_path(), 1000);
  }
}

TEST(DecodePathTest, LogprobsOfPromptsOnThePathAreTheBodys) {
  PathBench mixed(3, kRoomy, 3000, /*drafts=*/0, /*prompts=*/true);
  PathBench plain(3, kRoomy, 0);
  std::vector<std::shared_ptr<engine::CollectingSink>> a;
  std::vector<std::shared_ptr<engine::CollectingSink>> b;
  for (const int32_t length : {1, 2, 64, 65, 66, 300}) {  // around the results of one run
    a.push_back(mixed.submit(some_ids(length, length), 3, 0.0F, false, 0, /*scores=*/true));
    b.push_back(plain.submit(some_ids(length, length), 3, 0.0F, false, 0, /*scores=*/true));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    a[i]->wait();
    b[i]->wait();
    ASSERT_NO_FATAL_FAILURE(expect_equal(*a[i], *b[i], "prompt " + std::to_string(i)));
    const auto left = a[i]->prompt_logprobs();
    const auto right = b[i]->prompt_logprobs();
    ASSERT_EQ(left.size(), right.size()) << i;
    for (size_t k = 0; k < left.size(); ++k) {
      ASSERT_EQ(left[k].id, right[k].id) << i << " token " << k;
      ASSERT_EQ(left[k].logprob, right[k].logprob) << i << " token " << k;
    }
  }
}

TEST(DecodePathTest, AWrongPathIsRefusedAtStart) {
  PathUse use;
  RunnerConfig runner{.num_slots = 2, .cache_bytes = kRoomy};
  for (const bool prompts : {false, true}) {
    for (const bool wrong : {false, true}) {
      runner.decode_path = [&](const DecodePathContext& context) {
        return std::make_unique<ForgetfulPath>(context, 3000, use, prompts, wrong);
      };
      if (wrong) {
        EXPECT_THROW(ModelExecutor(fixed_order_model(), runner, "tiny"), Error);
      } else {
        ModelExecutor(fixed_order_model(), runner, "tiny");
      }
    }
  }
  EXPECT_EQ(use.rows, 2 * 6 + 2 * (2 + 6));
}

TEST(DecodePathTest, AnswersFromAFilledDeviceAreTheBodys) {
  PathBench filled(2, bytes_of_pages(2), 3000, 0, /*prompts=*/true, false, kRoomy + kSpare);
  PathBench body(2, kRoomy, 0);
  const std::vector<int32_t> prompt = some_ids(700, 4);  // more than the check's pools hold
  const auto a = filled.submit(prompt, 40);
  const auto b = body.submit(prompt, 40);
  a->wait();
  b->wait();
  expect_equal(*a, *b, "filled");
  EXPECT_EQ(filled.use.pool_changes, 1);
}

TEST(DecodePathTest, WantsASharedCache) {
  RunnerConfig runner{.num_slots = 2};
  runner.decode_path = [](const DecodePathContext&) -> std::unique_ptr<DecodePath> {
    ADD_FAILURE() << "made without pools";
    return nullptr;
  };
  EXPECT_THROW(ModelExecutor(fixed_order_model(), runner, "tiny"), ConfigError);
}

}  // namespace
}  // namespace baleen::runner
