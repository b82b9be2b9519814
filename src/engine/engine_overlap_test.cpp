// Steps planned while the one before runs give what steps one by one give: tokens, log-probs,
// reasons, with every rule that looks at the tokens before, with and without drafts. The executor
// remembers what each slot was fed and draws a function of all of it, so a wrong token, place,
// limit or penalty anywhere shows.
#include <algorithm>
#include <atomic>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "engine/accepted_tokens.h"
#include "engine/engine.h"
#include "engine/engine_test_bench.h"

namespace baleen::engine {
namespace {

/// Draws a hash of the whole sequence, of what was drawn before (as penalties would) and of the
/// sampling row; ends and </think> come now and then. Of the drafts of a row as many stand as the
/// sequence says.
class HistoryExecutor final : public Executor {
 public:
  struct Counts {
    std::atomic<int64_t> rows = 0;
    std::atomic<int64_t> following = 0;
    std::atomic<int64_t> moved = 0;  // of those, further on than planned
  };
  explicit HistoryExecutor(Counts& counts, int32_t max_drafts = 0)
      : counts_(counts), max_drafts_(max_drafts), slots_(4) {}

  ExecutorCapacity capacity() const override {
    return {4, 400, 32, 297, max_drafts_ + 1, max_drafts_};
  }
  ExecutorInfo info() const override { return {}; }
  Ticket submit(const BatchPlan& plan, const MaskProvider&) override {
    for (const SlotReset& reset : plan.resets) {
      slots_.at(static_cast<size_t>(reset.slot.value())) = {};
    }
    result_ = {};
    result_.step = plan.step;
    for (const BatchRow& row : plan.rows) {
      result_.rows.push_back(run(row, plan));
    }
    accepted_.keep(result_);
    return Ticket(0);
  }
  StepResult wait(Ticket) override { return std::move(result_); }

 private:
  struct Slot {
    std::vector<int32_t> fed;
    std::map<int32_t, int32_t> drawn;
  };

  RowResult run(const BatchRow& planned, const BatchPlan& plan) {
    const BatchRow row = accepted_.placed(planned);
    ++counts_.rows;
    counts_.following += row.follows >= 0 ? 1 : 0;
    counts_.moved += row.first_position == planned.first_position ? 0 : 1;
    Slot& slot = slots_.at(static_cast<size_t>(row.slot.value()));
    EXPECT_EQ(static_cast<size_t>(row.first_position.value()), slot.fed.size());
    for (int32_t i = 0; i < row.num_tokens - row.num_drafts; ++i) {
      slot.fed.push_back(accepted_.resolve(plan.ids[static_cast<size_t>(row.ids_offset + i)]));
    }
    RowResult result;
    if (row.sampling_index < 0) {
      return result;
    }
    const SamplingRow& sampling = plan.sampling[static_cast<size_t>(row.sampling_index)];
    EXPECT_GE(sampling.accept_limit, 1);
    EXPECT_EQ(row.num_drafts > 0, row.kind == RowKind::kVerify);
    result.num_drafted = std::min(row.num_drafts, accepted_.limit(row, sampling) - 1);
    const auto num_stand = static_cast<int32_t>(slot.fed.size() * 7 / 3) % (result.num_drafted + 1);
    for (int32_t i = 0; i <= num_stand; ++i) {
      if (i > 0) {
        slot.fed.push_back(result.ids.back());  // a draft that stood was run in this very row
      }
      draw(sampling, slot, result);
    }
    return result;
  }

  static void draw(const SamplingRow& sampling, Slot& slot, RowResult& result) {
    uint64_t hash = sampling.seed;
    const auto mix = [&](int64_t value) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 29;
    };
    for (const int32_t id : slot.fed) {
      mix(id);
    }
    for (const auto& [id, count] : slot.drawn) {
      mix(id * 1000 + count);
    }
    mix(sampling.sample_index);
    int32_t id = static_cast<int32_t>(hash % 290);
    const auto& forbidden = sampling.forbidden_ids;
    while (std::find(forbidden.begin(), forbidden.end(), id) != forbidden.end()) {
      id = (id + 1) % 290;
    }
    if (sampling.forced_id >= 0) {
      id = sampling.forced_id;
    }
    ++slot.drawn[id];
    result.ids.push_back(id);
    if (sampling.want_logprobs) {
      result.logprobs.push_back(-static_cast<float>(hash % 1000) / 100.0F);
      auto& top = result.top_logprobs.emplace_back();
      for (int32_t k = 0; k < sampling.top_logprobs; ++k) {
        top.push_back({(id + k) % 290, -1.0F - static_cast<float>(k)});
      }
    }
  }

  Counts& counts_;
  const int32_t max_drafts_;
  std::vector<Slot> slots_;
  AcceptedTokens accepted_;
  StepResult result_;
};

GenerationRequest random_request(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int bound) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(bound));
  };
  const text::Tokenizer& tokenizer = ScriptedBench::tokenizer();
  GenerationRequest request;
  request.id = "r" + std::to_string(seed);
  for (int i = 1 + below(60); i > 0; --i) {
    request.prompt.push_back(5 + below(250));
  }
  request.max_new_tokens = below(60);
  request.sampling.seed = seed;
  request.sampling.sample_index = below(3);
  request.want_logprobs = below(2) == 0;
  request.top_logprobs = request.want_logprobs ? below(3) : 0;
  if (below(3) == 0) {
    request.min_new_tokens = below(request.max_new_tokens + 1);
  }
  if (below(2) == 0) {
    request.stop_token_ids = {below(290), below(290), below(290)};
  }
  if (below(2) == 0) {
    request.output.stop = {tokenizer.decode(std::vector<int32_t>{40 + below(50)}), "ab"};
    std::erase(request.output.stop, "");
  }
  request.ignore_eos = below(4) == 0;
  if (below(3) == 0) {
    request.output.starts_in_reasoning = true;
    request.reasoning_budget = 1 + below(30);
  }
  return request;
}

struct Answers {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  int64_t rows = 0;
  int64_t following = 0;
  int64_t moved = 0;
};

struct Drafting {
  int32_t max_drafts = 0;
  bool adaptive = false;
};

Answers answers(bool overlap, uint32_t first_seed, int count, Drafting drafting = {}) {
  HistoryExecutor::Counts counts;
  Answers out;
  {
    MetricRegistry metrics;
    EngineConfig config = EngineConfig::for_tokenizer(ScriptedBench::tokenizer());
    config.overlap = overlap;
    config.adaptive_drafts = drafting.adaptive;
    config.max_prefill_chunk = 9;
    Engine engine(config,
                  std::make_unique<HistoryExecutor>(counts, drafting.max_drafts),
                  ScriptedBench::shared_tokenizer(),
                  metrics);
    engine.start();
    for (int i = 0; i < count; ++i) {
      out.sinks.push_back(std::make_shared<CollectingSink>());
      const Status status =
          engine.submit(random_request(first_seed + static_cast<uint32_t>(i)), out.sinks.back());
      EXPECT_TRUE(status.ok()) << status.message;
    }
    for (const auto& sink : out.sinks) {
      EXPECT_TRUE(sink->wait_for(kPatience));
    }
    engine.stop();
    EXPECT_TRUE(engine.healthy()) << engine.health_message();
    EXPECT_EQ(engine.stats().num_running, 0);
  }
  out.rows = counts.rows;
  out.following = counts.following;
  out.moved = counts.moved;
  return out;
}

void expect_same_answers(const Answers& plain, const Answers& ahead) {
  for (size_t i = 0; i < plain.sinks.size(); ++i) {
    const CollectingSink& a = *plain.sinks[i];
    const CollectingSink& b = *ahead.sinks[i];
    ASSERT_EQ(a.ids(), b.ids()) << "request " << i;
    const FinishInfo x = a.finish();
    const FinishInfo y = b.finish();
    EXPECT_EQ(x.reason, y.reason);
    EXPECT_EQ(x.matched_stop, y.matched_stop);
    EXPECT_EQ(x.matched_stop_token, y.matched_stop_token);
    EXPECT_EQ(x.message.content, y.message.content);
    EXPECT_EQ(x.message.reasoning, y.message.reasoning);
    EXPECT_EQ(x.completion_tokens, y.completion_tokens);
    EXPECT_EQ(x.reasoning_tokens, y.reasoning_tokens);
    const auto tokens = a.tokens();
    const auto others = b.tokens();
    for (size_t k = 0; k < tokens.size(); ++k) {
      ASSERT_EQ(tokens[k].logprob, others[k].logprob);
      ASSERT_EQ(tokens[k].top_logprobs.size(), others[k].top_logprobs.size());
    }
  }
}

TEST(EngineOverlapTest, DraftedStepsPlannedAheadGiveWhatPlainStepsOneByOneGive) {
  int64_t rows = 0;
  int64_t following = 0;
  int64_t moved = 0;
  for (uint32_t round = 0; round < 5; ++round) {
    const Answers plain = answers(false, round * 100, 40);
    for (const Drafting drafting : {Drafting{1, false}, Drafting{3, false}, Drafting{5, true}}) {
      const Answers one_by_one = answers(false, round * 100, 40, drafting);
      EXPECT_EQ(one_by_one.following, 0);
      ASSERT_NO_FATAL_FAILURE(expect_same_answers(plain, one_by_one));
      const Answers ahead = answers(true, round * 100, 40, drafting);
      ASSERT_NO_FATAL_FAILURE(expect_same_answers(plain, ahead));
      rows += ahead.rows;
      following += ahead.following;
      moved += ahead.moved;
    }
  }
  EXPECT_GT(following, rows / 4) << "drafts do not keep rows from running ahead";
  EXPECT_GT(moved, following / 4) << "and the places of those are found late";
}

TEST(EngineOverlapTest, GivesWhatStepsOneByOneGive) {
  int64_t rows = 0;
  int64_t following = 0;
  for (uint32_t round = 0; round < 10; ++round) {
    const Answers plain = answers(false, round * 100, 40);
    const Answers ahead = answers(true, round * 100, 40);
    EXPECT_EQ(plain.following, 0);
    rows += ahead.rows;
    following += ahead.following;
    ASSERT_NO_FATAL_FAILURE(expect_same_answers(plain, ahead)) << "round " << round;
  }
  EXPECT_GT(following, rows / 3) << "most rows of generated tokens run ahead";
}

TEST(EngineOverlapTest, ARequestThatEndsAtItsLimitHasNoRowTooMany) {
  HistoryExecutor::Counts counts;
  MetricRegistry metrics;
  EngineConfig config;
  Engine engine(config,
                std::make_unique<HistoryExecutor>(counts),
                ScriptedBench::shared_tokenizer(),
                metrics);
  engine.start();
  GenerationRequest request;
  request.id = "r";
  request.prompt = {7, 8, 9};
  request.max_new_tokens = 5;
  request.ignore_eos = true;
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine.submit(request, sink).ok());
  ASSERT_TRUE(sink->wait_for(kPatience));
  engine.stop();
  EXPECT_EQ(counts.rows, 5);
  EXPECT_EQ(counts.following, 4);
}

void expect_aborts_leave_nothing(int32_t max_drafts) {
  HistoryExecutor::Counts counts;
  MetricRegistry metrics;
  EngineConfig config = EngineConfig::for_tokenizer(ScriptedBench::tokenizer());
  config.max_prefill_chunk = 5;
  Engine engine(config,
                std::make_unique<HistoryExecutor>(counts, max_drafts),
                ScriptedBench::shared_tokenizer(),
                metrics);
  engine.start();
  std::mt19937 random(3);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint32_t i = 0; i < 300; ++i) {
    GenerationRequest request = random_request(i);
    const std::string id = request.id;
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine.submit(std::move(request), sinks.back()).ok());
    if (random() % 2 == 0) {
      sinks.back()->wait_for_tokens(random() % 4, std::chrono::milliseconds(5));
      engine.abort(id);
    }
  }
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait_for(kPatience));
  }
  EXPECT_TRUE(engine.healthy()) << engine.health_message();
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_used_tokens, 0);
}

TEST(EngineOverlapTest, AbortsAtAnyMomentLeaveNothingBehind) {
  expect_aborts_leave_nothing(0);
}

TEST(EngineOverlapTest, AbortsWithDraftsUnderWayLeaveNothingBehind) {
  expect_aborts_leave_nothing(3);
}

}  // namespace
}  // namespace baleen::engine
