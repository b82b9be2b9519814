// Speculation changes no answer: with drafts of its own and with drafts forced right and wrong in
// every order, over own memory and over painted pages, with every sampling field, stops, preemption
// and prefix hits, an engine gives the tokens and log-probs of one that drafts nothing.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/memory_plan.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "model/initialize.h"
#include "runner/model_executor.h"
#include "runner/some_ids_for_tests.h"
#include "text/tokenizer.h"
#include "weights/generation_config.h"
#include "weights/model_presets.h"

namespace baleen::runner {
namespace {

using engine::CollectingSink;
using engine::FinishReason;
using engine::GenerationRequest;

/// Sums in fixed order: the answers are equal to the bit.
struct DraftArithmetic {
  const char* numerics = "plain+invariant";
  bool doubles = false;
};

model::Model drafting_model(int32_t max_drafts, const DraftArithmetic& arithmetic = {}) {
  const ModelConfig config = weights::tiny_config();
  model::FreshOptions fresh;
  fresh.seed = 1;
  fresh.matrix_std = 0.15;
  fresh.vector_noise = 0.1;
  model::ForwardConfig forward;
  forward.numerics = arithmetic.numerics;
  forward.compute =
      arithmetic.doubles ? model::ComputeType::kFloat64 : model::ComputeType::kFloat32;
  forward.max_context = 2000;
  forward.with_mtp = max_drafts > 0;
  forward.max_rollback = max_drafts;
  const at::ScalarType dtype = arithmetic.doubles ? at::kDouble : at::kFloat;
  return {model::make_fresh_parameters(config, fresh, at::TensorOptions(dtype)), forward};
}

int64_t cache_bytes_of(const model::Model& model,
                       int32_t full_pages,
                       int32_t num_slots,
                       int32_t step_tokens) {
  const cache::CacheShape shape = cache::cache_shape(model.config(), model.cache_formats());
  const cache::CachePlanOptions plan{
      .max_running_requests = num_slots, .chunk_tokens = step_tokens, .drafts = true};
  for (int64_t bytes = 1 << 20;; bytes += bytes / 16) {
    try {
      if (cache::fit_cache(shape, bytes, plan).full_pages >= full_pages) {
        return bytes;
      }
    } catch (const ConfigError&) {
      // Not even one page: more.
    }
  }
}

constexpr int32_t kKnownDrafts = 3;

/// Drafts for texts that are known from plain runs, in chains of kKnownDrafts: right for the first
/// so many of a step.
class KnownTexts {
 public:
  void add(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
    std::lock_guard lock(mutex_);
    text_ = prompt;
    text_.insert(text_.end(), answer.begin(), answer.end());
    step_ = 0;
    last_position_ = -2;
  }
  /// Right drafts per verify step, over and over.
  void set_pattern(std::vector<int32_t> num_right) { pattern_ = std::move(num_right); }

  int32_t replace(int64_t position, int32_t own) {
    std::lock_guard lock(mutex_);
    if (position >= static_cast<int64_t>(text_.size()) || pattern_.empty()) {
      return own;
    }
    if (position != last_position_ + 1 || ++chain_length_ > kKnownDrafts) {
      chain_length_ = 1;
      right_left_ = pattern_[step_++ % pattern_.size()];
    }
    last_position_ = position;
    const int32_t right = text_[static_cast<size_t>(position)];
    return right_left_-- > 0 ? right : (right + 1) % 512;
  }

 private:
  std::mutex mutex_;
  std::vector<int32_t> text_;
  std::vector<int32_t> pattern_;
  size_t step_ = 0;
  int64_t last_position_ = -2;
  int32_t chain_length_ = 0;
  int32_t right_left_ = 0;
};

struct DraftBenchOptions {
  int32_t max_drafts = 0;
  int32_t num_slots = 2;
  int32_t step_tokens = 256;
  int32_t chunk = 128;
  int32_t full_pages = 0;  // 0: every sequence has memory of its own
  bool adaptive = false;
  DraftArithmetic arithmetic = {};
  DraftSampling sampling = DraftSampling::kCoupled;
  std::function<int32_t(RequestSlot, int64_t, int32_t)> replace = {};
};

class DraftBench {
 public:
  explicit DraftBench(const DraftBenchOptions& options) {
    engine::EngineConfig config;
    config.max_prefill_chunk = options.chunk;
    config.adaptive_drafts = options.adaptive;
    RunnerConfig runner;
    runner.num_slots = options.num_slots;
    runner.max_step_tokens = options.step_tokens;
    model::Model model = drafting_model(options.max_drafts, options.arithmetic);
    if (options.full_pages > 0) {
      runner.cache_bytes =
          cache_bytes_of(model, options.full_pages, options.num_slots, options.step_tokens);
    }
    runner.paint_pages = true;
    runner.drafts.max_drafts = options.max_drafts;
    runner.drafts.sampling = options.sampling;
    runner.drafts.replace = options.replace;
    engine_ = std::make_unique<engine::Engine>(
        config,
        std::make_unique<ModelExecutor>(std::move(model), runner, "tiny"),
        text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
        metrics_);
    engine_->start();
  }
  ~DraftBench() { engine_->stop(); }

  std::shared_ptr<CollectingSink> submit(GenerationRequest request) {
    request.id = std::to_string(next_++);
    auto sink = std::make_shared<CollectingSink>();
    const Status status = engine_->submit(std::move(request), sink);
    EXPECT_TRUE(status.ok()) << status.message;
    return sink;
  }
  std::shared_ptr<CollectingSink> run(GenerationRequest request) {
    auto sink = submit(std::move(request));
    sink->wait();
    return sink;
  }
  std::string metrics() const { return metrics_.expose(); }

 private:
  MetricRegistry metrics_;
  std::unique_ptr<engine::Engine> engine_;
  int next_ = 0;
};

GenerationRequest greedy_request(std::vector<int32_t> prompt, int32_t max_new) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new;
  request.ignore_eos = true;
  request.want_logprobs = true;
  request.top_logprobs = 3;
  request.sampling.temperature = 0.0F;
  request.sampling.seed = 77;
  return request;
}

/// One request per sampling field, and one with all.
std::vector<GenerationRequest> requests_of_all_kinds(int32_t max_new) {
  std::vector<GenerationRequest> requests;
  for (int32_t i = 0; i < 8; ++i) {
    GenerationRequest request = greedy_request(some_ids(9 + 31 * i, i), max_new);
    engine::SamplingConfig& s = request.sampling;
    s.temperature = i == 0 ? 0.0F : 0.8F;
    s.top_k = i == 2 || i == 7 ? 12 : -1;
    s.top_p = i == 3 || i == 7 ? 0.8F : 1.0F;
    s.min_p = i == 4 || i == 7 ? 0.05F : 0.0F;
    s.frequency_penalty = i == 5 || i == 7 ? 1.1F : 0.0F;
    s.presence_penalty = i == 5 ? -0.5F : 0.0F;
    s.repetition_penalty = i == 6 || i == 7 ? 1.3F : 1.0F;
    if (i >= 6) {
      s.logit_bias = {{3, 2.5F}, {100, 1.5F}};
      s.sample_index = i;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void expect_same_answer(const CollectingSink& drafted,
                        const CollectingSink& plain,
                        const std::string& what) {
  ASSERT_EQ(drafted.ids(), plain.ids()) << what;
  const auto a = drafted.tokens();
  const auto b = plain.tokens();
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].logprob, b[i].logprob) << what << " token " << i;
    ASSERT_EQ(a[i].top_logprobs.size(), b[i].top_logprobs.size()) << what << " token " << i;
    for (size_t k = 0; k < a[i].top_logprobs.size(); ++k) {
      ASSERT_EQ(a[i].top_logprobs[k].id, b[i].top_logprobs[k].id) << what << " token " << i;
      ASSERT_EQ(a[i].top_logprobs[k].logprob, b[i].top_logprobs[k].logprob)
          << what << " token " << i;
    }
  }
  const engine::FinishInfo end_a = drafted.finish();
  const engine::FinishInfo end_b = plain.finish();
  ASSERT_EQ(end_a.reason, end_b.reason) << what << ": " << end_a.error.message;
  ASSERT_EQ(end_a.matched_stop, end_b.matched_stop) << what;
  ASSERT_EQ(end_a.matched_stop_token, end_b.matched_stop_token) << what;
  ASSERT_EQ(end_a.message.content, end_b.message.content) << what;
  ASSERT_EQ(end_a.completion_tokens, end_b.completion_tokens) << what;
}

TEST(DraftedEngineTest, OwnDraftsGiveThePlainAnswersForEverySamplingField) {
  struct Variant {
    DraftArithmetic arithmetic;
    int32_t full_pages;
    int32_t max_drafts;
  };
  for (const auto& [arithmetic, full_pages, max_drafts] :
       std::vector<Variant>{{{"plain+invariant", true}, 0, 3},
                            {{"plain+invariant", true}, 40, 8},
                            {{"reference+invariant", true}, 40, 3},
                            {{"plain+invariant", false}, 40, 1},
                            {{"reference+invariant", false}, 40, 3}}) {
    DraftBench plain({.arithmetic = arithmetic});
    DraftBench drafted(
        {.max_drafts = max_drafts, .full_pages = full_pages, .arithmetic = arithmetic});
    const std::vector<GenerationRequest> requests = requests_of_all_kinds(24);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto a = drafted.run(requests[i]);
      const auto b = plain.run(requests[i]);
      ASSERT_NO_FATAL_FAILURE(expect_same_answer(
          *a, *b, std::string(arithmetic.numerics) + " request " + std::to_string(i)));
      EXPECT_GT(a->finish().drafts.verify_steps, 0);
      EXPECT_EQ(b->finish().drafts.verify_steps, 0);
    }
  }
}

TEST(DraftedEngineTest, EveryOrderOfAcceptLengthsGivesThePlainAnswer) {
  DraftBench plain({});
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
  }
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
  for (int32_t i = 0; i < 8; ++i) {
    GenerationRequest request = greedy_request(some_ids(200 + 17 * i, i % 3), 110);
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.9F;
    request.sampling.frequency_penalty = i % 2 == 0 ? 0.0F : 0.5F;
    if (i == 5) {
      request.max_drafts = 0;
    }
    a.push_back(crowded.submit(request));
    b.push_back(cold.submit(request));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    a[i]->wait();
    b[i]->wait();
    ASSERT_EQ(a[i]->finish().reason, FinishReason::kLength) << a[i]->finish().error.message;
    ASSERT_NO_FATAL_FAILURE(expect_same_answer(*a[i], *b[i], "request " + std::to_string(i)));
  }
  EXPECT_EQ(a[5]->finish().drafts.verify_steps, 0);
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
  // rows without drafts.
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
                                                                  {129, 8, true, false}}) {
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
