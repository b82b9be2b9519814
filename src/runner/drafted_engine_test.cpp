// Speculation changes no answer: with drafts of its own and with drafts forced right and wrong in
// every order, over own memory and over painted pages, with every sampling field, stops, preemption
// and prefix hits, with steps one by one and planned ahead, an engine gives the tokens, log-probs
// and recorded choices of one that drafts nothing.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "runner/drafted_test_bench.h"
#include "runner/model_executor.h"
#include "runner/some_ids_for_tests.h"
#include "text/tokenizer.h"

namespace baleen::runner {
namespace {

TEST(DraftedEngineTest, OwnDraftsGiveThePlainAnswersForEverySamplingField) {
  struct Variant {
    DraftArithmetic arithmetic;
    int32_t full_pages;
    int32_t max_drafts;
    bool overlap;
  };
  for (const auto& [arithmetic, full_pages, max_drafts, overlap] :
       std::vector<Variant>{{{"plain+invariant", true}, 0, 3, true},
                            {{"plain+invariant", true}, 40, 8, true},
                            {{"reference+invariant", true}, 40, 3, true},
                            {{"plain+invariant", true}, 40, 3, false},
                            {{"plain+invariant", false}, 40, 1, true},
                            {{"reference+invariant", false}, 40, 3, true}}) {
    DraftBench plain({.overlap = false, .arithmetic = arithmetic});
    DraftBench drafted({.max_drafts = max_drafts,
                        .full_pages = full_pages,
                        .overlap = overlap,
                        .arithmetic = arithmetic});
    const std::vector<GenerationRequest> requests = requests_of_all_kinds(24);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto a = drafted.run(requests[i]);
      const auto b = plain.run(requests[i]);
      ASSERT_NO_FATAL_FAILURE(expect_same_answer(
          *a, *b, std::string(arithmetic.numerics) + " request " + std::to_string(i)));
      EXPECT_GT(a->finish().drafts.verify_steps, 0);
      EXPECT_EQ(b->finish().drafts.verify_steps, 0);
    }
    EXPECT_EQ(drafted.ahead().verify > 0, overlap);
  }
}

TEST(DraftedEngineTest, EveryOrderOfAcceptLengthsGivesThePlainAnswer) {
  DraftBench plain({});
  int64_t moved = 0;
  // The prompt ends so that the steps pass over a page border and over ends of groups.
  const GenerationRequest request = greedy_request(some_ids(248, 4), 17);
  const auto expected = plain.run(request);
  for (const int32_t full_pages : {0, 40}) {
    KnownTexts texts;
    texts.add(request.prompt, expected->ids());
    DraftBench drafted({.max_drafts = 3,
                        .full_pages = full_pages,
                        .replace = [&](RequestSlot, int64_t position, int32_t own) {
                          return texts.replace(position, own);
                        }});
    // Own memory computes the prompt each time: some of the orders there.
    for (int32_t order = 0; order < 256; order += full_pages == 0 ? 9 : 1) {
      const std::vector<int32_t> pattern = {
          order % 4, order / 4 % 4, order / 16 % 4, order / 64 % 4};
      texts.set_pattern(pattern);
      texts.add(request.prompt, expected->ids());
      const auto got = drafted.run(request);
      ASSERT_NO_FATAL_FAILURE(expect_same_answer(*got, *expected, std::to_string(order)));
      const int32_t all = pattern[0] + pattern[1] + pattern[2] + pattern[3];
      if (all < 12) {  // the four steps lie within the answer
        EXPECT_GE(got->finish().drafts.accepted, all) << order;
      }
    }
    moved += drafted.ahead().moved;
  }
  EXPECT_GT(moved, 200) << "steps are planned before it is known how far the drafts of the last go";
}

TEST(DraftedEngineTest, StopsAndLimitsActAtEveryPlaceOfAChain) {
  DraftBench plain({});
  KnownTexts texts;
  texts.set_pattern({3});
  DraftBench drafted({.max_drafts = 3,
                      .full_pages = 40,
                      .replace = [&](RequestSlot, int64_t position, int32_t own) {
                        return texts.replace(position, own);
                      }});
  const GenerationRequest base = greedy_request(some_ids(30, 2), 12);
  const std::vector<int32_t> answer = plain.run(base)->ids();
  for (size_t place = 0; place < 9; ++place) {
    const auto both = [&](GenerationRequest request, const char* what) {
      texts.add(base.prompt, answer);
      const auto a = drafted.run(request);
      const auto b = plain.run(request);
      expect_same_answer(*a, *b, what + std::to_string(place));
    };
    GenerationRequest request = base;
    request.max_new_tokens = static_cast<int32_t>(place) + 1;
    ASSERT_NO_FATAL_FAILURE(both(request, "limit "));
    request = base;
    request.stop_token_ids = {answer[place]};
    ASSERT_NO_FATAL_FAILURE(both(request, "stop token "));
    request.min_new_tokens = static_cast<int32_t>(place) + 2;
    ASSERT_NO_FATAL_FAILURE(both(request, "forbidden before "));
    request = base;
    request.output.parse_markup = false;
    const std::string text = text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json")
                                 ->decode(std::vector<int32_t>{answer[place]});
    if (!text.empty()) {
      request.output.stop = {text};
      ASSERT_NO_FATAL_FAILURE(both(request, "stop string "));
    }
  }
}

TEST(DraftedEngineTest, ACrowdedCacheWithDraftsAnswersAsAPlainEngine) {
  DraftBench crowded({.max_drafts = 3,
                      .num_slots = 6,
                      .step_tokens = 128,
                      .chunk = 64,
                      .full_pages = 9,
                      .adaptive = true});
  DraftBench cold({.num_slots = 6, .step_tokens = 128, .chunk = 64});
  std::vector<std::shared_ptr<CollectingSink>> a;
  std::vector<std::shared_ptr<CollectingSink>> b;
  std::vector<std::shared_ptr<CollectingSink>> left;
  std::vector<std::string> left_ids;
  crowded.pause();  // all are there before the first step
  for (int32_t i = 0; i < 8; ++i) {
    GenerationRequest request = greedy_request(some_ids(200 + 17 * i, i % 3), 110);
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.9F;
    request.sampling.frequency_penalty = i % 2 == 0 ? 0.0F : 0.5F;
    if (i == 5) {
      request.max_drafts = 0;
    }
    a.push_back(crowded.submit(request));
    b.push_back(cold.submit(request));
    if (i % 3 == 0) {  // others run first and leave in the middle of their drafts
      request.priority = 1;
      left.push_back(crowded.submit(request));
      left_ids.push_back(crowded.last_id());
    }
  }
  crowded.resume();
  for (size_t i = 0; i < left.size(); ++i) {
    left[i]->wait_for_tokens(2 + 3 * i, std::chrono::seconds(60));
    crowded.abort(left_ids[i]);
    left[i]->wait();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    a[i]->wait();
    b[i]->wait();
    ASSERT_EQ(a[i]->finish().reason, FinishReason::kLength) << a[i]->finish().error.message;
    ASSERT_NO_FATAL_FAILURE(expect_same_answer(*a[i], *b[i], "request " + std::to_string(i)));
  }
  EXPECT_EQ(a[5]->finish().drafts.verify_steps, 0);
  EXPECT_GT(crowded.ahead().moved, 0);
  EXPECT_GT(crowded.stats().num_preemptions, 0);
}

TEST(DraftedEngineTest, PausesInTheMiddleOfDraftsChangeNoAnswer) {
  // Held in place, or given up with what was drafted and had again, pages kept or flushed; pages
  // are short in between, so that some are preempted as well, and one leaves while all are held.
  enum class Pause { kInPlace, kRetract, kRetractAndFlush };
  DraftBench plain({});
  std::vector<GenerationRequest> requests = requests_of_all_kinds(70);
  requests.erase(requests.begin(), requests.begin() + 2);
  std::vector<std::shared_ptr<CollectingSink>> expected;
  for (GenerationRequest& request : requests) {
    // Each grows over a page border; together they need more pages than there are.
    const auto index = static_cast<int32_t>(expected.size());
    request.prompt = some_ids(200 + 9 * index, index);
    expected.push_back(plain.run(request));
  }
  for (const Pause how : {Pause::kInPlace, Pause::kRetract, Pause::kRetractAndFlush}) {
    DraftBench drafted(
        {.max_drafts = 3, .num_slots = 6, .step_tokens = 128, .chunk = 64, .full_pages = 7});
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (const GenerationRequest& request : requests) {
      sinks.push_back(drafted.submit(request));
    }
    const auto leaves = drafted.submit(requests[1]);
    const std::string leaving = drafted.last_id();
    for (const size_t num_tokens : {2, 5, 11, 18, 27, 40}) {
      sinks[num_tokens % sinks.size()]->wait_for_tokens(num_tokens, std::chrono::seconds(60));
      drafted.pause(how == Pause::kInPlace ? engine::PauseMode::kInPlace
                                           : engine::PauseMode::kRetract);
      if (how == Pause::kRetractAndFlush) {
        drafted.flush_cache();
      }
      if (num_tokens == 18) {
        drafted.abort(leaving);
      }
      const engine::EngineStats held = drafted.stats();
      EXPECT_EQ(held.num_running == 0, how != Pause::kInPlace);
      drafted.resume();
    }
    leaves->wait();
    for (size_t i = 0; i < sinks.size(); ++i) {
      sinks[i]->wait();
      ASSERT_NO_FATAL_FAILURE(
          expect_same_answer(*sinks[i], *expected[i], "request " + std::to_string(i)));
    }
    EXPECT_GT(drafted.ahead().moved, 0);
    EXPECT_GT(drafted.stats().num_preemptions, 0);
  }
}

TEST(DraftedEngineTest, PrefixHitsKeepAnswersAndDrafts) {
  // Every draft is recorded: behind a prefix hit the draft layer must guess as in a cold run.
  using Guesses = std::map<int64_t, std::vector<int32_t>>;  // by position
  const auto recorder = [](Guesses& guesses) {
    return [&guesses](RequestSlot, int64_t position, int32_t own) {
      guesses[position].push_back(own);
      return own;
    };
  };
  Guesses warm_guesses;
  Guesses cold_guesses;
  DraftBench warm({.max_drafts = 2, .full_pages = 60, .replace = recorder(warm_guesses)});
  DraftBench cold({.max_drafts = 2, .replace = recorder(cold_guesses)});
  DraftBench plain({});
  const std::vector<int32_t> shared = some_ids(700, 3);
  int64_t cached = 0;
  // Cuts at pages and at resume points; equal and other next tokens; a request without drafts
  // leaves its rows to others. Hidden rows: behind a page that another token followed, and behind
  // rows without drafts. Behind a resume point that another token followed (384) the row is run
  // again.
  struct Hit {
    int32_t keep;
    int32_t salt;
    bool drafts;
    bool hides;
  };
  for (const auto& [keep, salt, drafts, hides] : std::vector<Hit>{{600, 1, true, false},
                                                                  {600, 1, true, false},
                                                                  {512, 2, true, true},
                                                                  {600, 3, true, false},
                                                                  {300, 4, true, false},
                                                                  {256, 5, true, true},
                                                                  {640, 6, false, false},
                                                                  {640, 7, true, true},
                                                                  {640, 6, true, true},
                                                                  {129, 8, true, false},
                                                                  {384, 9, true, false},
                                                                  {384, 10, true, false},
                                                                  {384, 11, true, false}}) {
    std::vector<int32_t> prompt(shared.begin(), shared.begin() + keep);
    const std::vector<int32_t> own = some_ids(40, salt);
    prompt.insert(prompt.end(), own.begin(), own.end());
    GenerationRequest request = greedy_request(prompt, 8);
    if (!drafts) {
      request.max_drafts = 0;
    }
    warm_guesses.clear();
    cold_guesses.clear();
    const std::string what = "keep " + std::to_string(keep) + " salt " + std::to_string(salt);
    const auto a = warm.run(request);
    const auto b = cold.run(request);
    const auto c = plain.run(request);
    ASSERT_NO_FATAL_FAILURE(expect_same_answer(*a, *c, what));
    ASSERT_NO_FATAL_FAILURE(expect_same_answer(*b, *c, what));
    cached += a->finish().cached_tokens;
    EXPECT_EQ(warm_guesses.empty(), !drafts) << what;
    if (drafts && !hides) {
      EXPECT_EQ(warm_guesses, cold_guesses) << what;
    }
  }
  EXPECT_GT(cached, 2500);
}

TEST(DraftedEngineTest, LogitsThatAreNotFiniteEndARequestWithARowPlannedBehind) {
  // The biased token is drawn first, its embedding spoils every row from there on.
  constexpr int32_t kNanId = 77;
  for (const int32_t full_pages : {0, 40}) {
    DraftBench plain({.nan_id = kNanId});
    DraftBench drafted({.max_drafts = 3, .full_pages = full_pages, .nan_id = kNanId});
    GenerationRequest spoilt = greedy_request(some_ids(20, 2), 30);
    std::erase(spoilt.prompt, kNanId);
    spoilt.sampling.logit_bias = {{kNanId, 1e6F}};
    GenerationRequest sound = greedy_request(some_ids(30, 5), 20);
    std::erase(sound.prompt, kNanId);
    sound.sampling.logit_bias = {{kNanId, -1e6F}};
    for (int again = 0; again < 3; ++again) {
      const auto a = drafted.submit(spoilt);
      const auto b = drafted.submit(sound);
      a->wait();
      b->wait();
      EXPECT_EQ(a->finish().reason, FinishReason::kError);
      EXPECT_EQ(a->ids(), (std::vector<int32_t>{kNanId}));
      ASSERT_NO_FATAL_FAILURE(expect_same_answer(*b, *plain.run(sound), "beside it"));
    }
    EXPECT_GT(drafted.ahead().verify, 0);
  }
}

TEST(DraftedEngineTest, ChunksOfAPromptLeaveTheDraftsAlone) {
  // The first guesses behind a prompt depend on its draft rows, the last of each chunk included.
  const std::vector<int32_t> prompt = some_ids(131, 6);
  std::vector<std::vector<int32_t>> guesses;
  for (const int32_t chunk : {131, 1, 7, 64, 130}) {
    std::vector<int32_t> own_guesses;
    DraftBench bench({.max_drafts = 3,
                      .chunk = chunk,
                      .full_pages = 10,
                      .replace = [&](RequestSlot, int64_t, int32_t own) {
                        own_guesses.push_back(own);
                        return own;
                      }});
    bench.run(greedy_request(prompt, 6));
    EXPECT_FALSE(own_guesses.empty());
    guesses.push_back(own_guesses);
    EXPECT_EQ(guesses.back(), guesses.front()) << "chunk " << chunk;
  }
}

TEST(DraftedEngineTest, RejectionSamplingRepeatsAndKeepsGreedyAnswers) {
  DraftBench plain({});
  DraftBench drafted({.max_drafts = 3, .full_pages = 40, .sampling = DraftSampling::kRejection});
  const GenerationRequest greedy = greedy_request(some_ids(40, 1), 20);
  ASSERT_NO_FATAL_FAILURE(expect_same_answer(*drafted.run(greedy), *plain.run(greedy), "greedy"));
  GenerationRequest sampled = greedy;
  sampled.sampling.temperature = 0.8F;
  const auto once = drafted.run(sampled);
  EXPECT_EQ(once->ids(), drafted.run(sampled)->ids());
  sampled.sampling.seed = 78;
  EXPECT_NE(once->ids(), drafted.run(sampled)->ids());
}

TEST(DraftedEngineTest, MetricsCountDraftsByPlace) {
  KnownTexts texts;
  texts.set_pattern({2});
  const GenerationRequest request = greedy_request(some_ids(30, 2), 13);
  DraftBench plain({});
  texts.add(request.prompt, plain.run(request)->ids());
  DraftBench drafted({.max_drafts = 3, .replace = [&](RequestSlot, int64_t position, int32_t own) {
                        return texts.replace(position, own);
                      }});
  const auto sink = drafted.run(request);
  // One token from the prompt, then 4 steps of 3 drafts, 2 of which stand, and a token.
  const engine::DraftCounts counts = sink->finish().drafts;
  EXPECT_EQ(counts.verify_steps, 4);
  EXPECT_EQ(counts.accepted, 8);
  const engine::DraftTotals totals = drafted.stats().drafts;
  EXPECT_EQ(totals.verify_steps, 4);
  EXPECT_EQ(totals.drafted, counts.drafted);
  EXPECT_EQ(totals.accepted_at, (std::vector<int64_t>{4, 4, 0}));
  EXPECT_EQ(totals.drafted_at, (std::vector<int64_t>{4, 4, 3})) << "the last chain has two drafts";
  const std::string page = drafted.metrics();
  const auto has = [&](const std::string& line) {
    return page.find("\n" + line + "\n") != std::string::npos;
  };
  EXPECT_TRUE(has("sglang:spec_verify_calls_total 4")) << page;
  EXPECT_TRUE(has("sglang:spec_accept_length 3")) << page;
  EXPECT_TRUE(has("baleen:spec_accepted_tokens_by_place_total{place=\"1\"} 4")) << page;
  EXPECT_TRUE(has("baleen:spec_accepted_tokens_by_place_total{place=\"2\"} 4")) << page;
  EXPECT_TRUE(has("baleen:spec_accepted_tokens_by_place_total{place=\"3\"} 0")) << page;
  EXPECT_TRUE(has("sglang:spec_num_steps 3")) << page;
  EXPECT_TRUE(has("sglang:spec_num_draft_tokens 4")) << page;
}

TEST(DraftedEngineTest, SimulatedAcceptanceSaysSoAloudAndKeepsItsLength) {
  RunnerConfig runner{.num_slots = 1, .max_step_tokens = 64};
  runner.drafts.max_drafts = 3;
  runner.drafts.simulate_accept_length = 2.5;
  auto executor = std::make_unique<ModelExecutor>(drafting_model(3), runner, "tiny");
  EXPECT_NE(executor->info().numerics.find("SIMULATED ACCEPTANCE"), std::string::npos);
  MetricRegistry metrics;
  engine::EngineConfig config;
  config.adaptive_drafts = false;
  engine::Engine engine(config,
                        std::move(executor),
                        text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
                        metrics);
  engine.start();
  GenerationRequest request = greedy_request(some_ids(12, 3), 101);
  request.id = "r";
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine.submit(std::move(request), sink).ok());
  sink->wait();
  engine.stop();
  EXPECT_EQ(sink->finish().completion_tokens, 101);
  EXPECT_NEAR(static_cast<double>(sink->finish().drafts.verify_steps), 40, 1);
}

TEST(DraftedEngineTest, RefusesDraftsThatTheModelOrTheRingsCannotBear) {
  RunnerConfig runner{.num_slots = 1, .max_step_tokens = 64};
  const auto make = [&](int32_t model_drafts) {
    return ModelExecutor(drafting_model(model_drafts), runner, "tiny").capacity();
  };
  runner.drafts.max_drafts = 3;
  EXPECT_THROW(make(0), ConfigError);  // no draft layer
  EXPECT_THROW(make(2), ConfigError);  // cannot take back three tokens
  runner.drafts.max_drafts = 9;
  EXPECT_THROW(make(9), ConfigError);
  runner.drafts.max_drafts = 2;
  runner.drafts.simulate_accept_length = 3.5;
  EXPECT_THROW(make(2), ConfigError);
  runner.drafts.simulate_accept_length = 0.0;
  runner.cache_bytes = cache_bytes_of(drafting_model(2), 4, 1, 64);
  cache::SequenceCacheOptions options = *make(2).cache;
  EXPECT_EQ(options.verified_tokens, 3);
  options.verified_tokens = 11;  // rings of 16 rows bear 10
  EXPECT_THROW(cache::SequenceCache{options}, ConfigError);
}

}  // namespace
}  // namespace baleen::runner
