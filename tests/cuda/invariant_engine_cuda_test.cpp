// The engine on kernels in invariant numerics: how prompts are cut, what runs beside a request,
// drafts and the cache change no bit of its answer.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "narrow_flash_gpu.h"
#include "runner/some_ids_for_tests.h"

namespace baleen::runner {
namespace {

TEST_F(NarrowFlashGpu, InvariantNumericsGiveEqualBits) {
  const std::vector<int32_t> lengths = {1, 100, 300, 777};
  std::vector<std::vector<engine::GeneratedToken>> expected;
  std::vector<std::vector<engine::TokenLogprob>> scores;
  struct Way {
    int32_t drafts;
    int32_t chunk;
    int32_t slots;  // 6: all prompts at once; 1: one after the other
  };
  for (const auto& [drafts, chunk, slots] :
       {Way{0, 256, 6}, Way{0, 60, 1}, Way{3, 256, 6}, Way{3, 60, 2}}) {
    RunnerConfig runner = kWide;
    runner.num_slots = slots;
    runner.drafts.max_drafts = drafts;
    KernelEngine engine("reference+invariant", runner, chunk);
    std::vector<std::shared_ptr<engine::CollectingSink>> answers;
    for (const int32_t length : lengths) {
      answers.push_back(engine.submit(some_ids(length, length), 60, /*scores=*/length == 100));
    }
    for (std::size_t i = 0; i < answers.size(); ++i) {
      answers[i]->wait();
      ASSERT_EQ(answers[i]->finish().reason, engine::FinishReason::kLength)
          << answers[i]->finish().error.message;
      const auto tokens = answers[i]->tokens();
      const auto found = answers[i]->prompt_logprobs();
      if (expected.size() < lengths.size()) {
        expected.push_back(tokens);
        scores.push_back(found);
        continue;
      }
      const std::string what = "drafts " + std::to_string(drafts) + " chunk " +
                               std::to_string(chunk) + " prompt " + std::to_string(lengths[i]);
      ASSERT_EQ(tokens.size(), expected[i].size()) << what;
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        ASSERT_EQ(tokens[t].id, expected[i][t].id) << what << " token " << t;
        ASSERT_EQ(tokens[t].logprob, expected[i][t].logprob) << what << " token " << t;
      }
      ASSERT_EQ(found.size(), scores[i].size()) << what;
      for (std::size_t t = 0; t < found.size(); ++t) {
        ASSERT_EQ(found[t].logprob, scores[i][t].logprob) << what << " prompt token " << t;
      }
    }
  }
}

struct Answer {
  std::vector<engine::GeneratedToken> tokens;
  std::vector<engine::TokenLogprob> prompt;
  int64_t cached_tokens = 0;
};

Answer answer_of(engine::CollectingSink& sink) {
  sink.wait();
  const engine::FinishInfo finish = sink.finish();
  EXPECT_EQ(finish.reason, engine::FinishReason::kLength) << finish.error.message;
  return {sink.tokens(), sink.prompt_logprobs(), finish.cached_tokens};
}

void expect_equal_bits(const Answer& found, const Answer& expected, const std::string& what) {
  ASSERT_EQ(found.tokens.size(), expected.tokens.size()) << what;
  for (std::size_t t = 0; t < found.tokens.size(); ++t) {
    ASSERT_EQ(found.tokens[t].id, expected.tokens[t].id) << what << " token " << t;
    ASSERT_EQ(found.tokens[t].logprob, expected.tokens[t].logprob) << what << " token " << t;
  }
  ASSERT_EQ(found.prompt.size(), expected.prompt.size()) << what;
  for (std::size_t t = 0; t < found.prompt.size(); ++t) {
    ASSERT_EQ(found.prompt[t].logprob, expected.prompt[t].logprob) << what << " prompt token " << t;
  }
}

TEST_F(NarrowFlashGpu, InvariantAnswersAreTheSameForOneTo64AtOnce) {
  RunnerConfig runner = kWide;
  runner.num_slots = 64;
  runner.cache_bytes = int64_t{2} << 30;
  KernelEngine engine("reference+invariant", runner, 256);
  const auto prompt = [](int32_t request) { return some_ids(5 + (request * 37) % 300, request); };
  std::vector<Answer> expected;
  for (const int32_t at_once : {64, 16, 7, 2, 1}) {
    ASSERT_TRUE(engine.engine().flush_cache().ok());
    std::vector<std::shared_ptr<engine::CollectingSink>> sinks;
    for (int32_t i = 0; i < at_once; ++i) {
      sinks.push_back(engine.submit(prompt(i), 24));
    }
    for (int32_t i = 0; i < at_once; ++i) {
      const Answer found = answer_of(*sinks[static_cast<std::size_t>(i)]);
      if (at_once == 64) {
        expected.push_back(found);
        continue;
      }
      ASSERT_NO_FATAL_FAILURE(
          expect_equal_bits(found,
                            expected[static_cast<std::size_t>(i)],
                            "request " + std::to_string(i) + " of " + std::to_string(at_once)));
    }
  }
}

TEST_F(NarrowFlashGpu, InvariantAnswersBehindTheCacheAreThoseOfAColdRun) {
  for (const int32_t drafts : {0, 3}) {
    RunnerConfig runner = kWide;
    runner.drafts.max_drafts = drafts;
    KernelEngine engine("reference+invariant", runner, 256);
    // A conversation whose turns each continue the last, then questions behind one long text:
    // resumed behind answers, at pages, at resume points inside pages.
    std::vector<std::vector<int32_t>> prompts;
    std::vector<Answer> warm;
    std::vector<int32_t> history;
    int64_t hits = 0;
    const auto ask = [&](const std::vector<int32_t>& prompt, int32_t tokens) {
      prompts.push_back(prompt);
      warm.push_back(answer_of(*engine.submit(prompt, tokens)));
      hits += warm.back().cached_tokens > 0 ? 1 : 0;
    };
    for (int32_t turn = 0; turn < 5; ++turn) {
      const std::vector<int32_t> added = some_ids(60 + (turn * 83) % 140, turn);
      history.insert(history.end(), added.begin(), added.end());
      ask(history, 30);
      for (const auto& token : warm.back().tokens) {
        history.push_back(token.id);
      }
    }
    const std::vector<int32_t> shared = some_ids(700, 77);
    for (int32_t question = 0; question < 4; ++question) {
      std::vector<int32_t> prompt(shared.begin(), shared.end() - 130 * question);
      const std::vector<int32_t> own = some_ids(40, 100 + question);
      prompt.insert(prompt.end(), own.begin(), own.end());
      ask(prompt, 30);
    }
    EXPECT_GE(hits, 6);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_TRUE(engine.engine().flush_cache().ok());
      const Answer cold =
          answer_of(*engine.submit(prompts[i], static_cast<int32_t>(warm[i].tokens.size())));
      EXPECT_EQ(cold.cached_tokens, 0);
      ASSERT_NO_FATAL_FAILURE(expect_equal_bits(
          warm[i],
          cold,
          "drafts " + std::to_string(drafts) + " prompt " + std::to_string(i) + " behind " +
              std::to_string(warm[i].cached_tokens) + " cached tokens"));
    }
  }
}

}  // namespace
}  // namespace baleen::runner
