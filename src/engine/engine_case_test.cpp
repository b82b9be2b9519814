// One story of clients that leave: while they wait, while they decode, while a copy of their pages
// is under way; and of messages about requests and copies that nobody knows.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_test_options.h"
#include "engine/cache_life_test.h"
#include "engine/engine.h"
#include "engine/engine_test_bench.h"
#include "engine/synthetic_executor.h"

namespace baleen::engine {
namespace {

constexpr int32_t kCasePages = 8;  // 2048 tokens

TEST(EngineCaseTest, PagesOfAClientThatLeftWaitForTheCopyUnderWay) {
  for (const bool overlap : {false, true}) {
    CacheLife life(cache::full_size(kCasePages, kCasePages),
                   {.num_slots = 2, .max_step_tokens = 1024, .max_prefill_chunk = 512},
                   overlap);
    std::map<int32_t, int32_t> limits;  // by first token: length at which a sequence ends
    const auto submit = [&](int64_t id, int32_t num_prompt, int32_t max_tokens) {
      const std::vector<int32_t> prompt = cache::some_ids(num_prompt, static_cast<int32_t>(id));
      limits[prompt[0]] = num_prompt + max_tokens;
      life.enqueue(SequenceId(id), prompt);
    };
    const auto turns = [&](int count) {
      for (int i = 0; i < count; ++i) {
        life.turn([&](const std::vector<int32_t>& tokens) {
          return static_cast<int32_t>(tokens.size()) == limits.at(tokens[0])
                     ? -1
                     : static_cast<int32_t>(2000 + tokens.size());
        });
      }
    };
    submit(1, 300, 50);
    submit(2, 300, 50);
    turns(2);
    submit(3, 100, 5);
    turns(4);
    const auto* decoding = life.scheduler().state(SequenceId(1)).get<Decoding>();
    ASSERT_NE(decoding, nullptr);
    const cache::CacheTicket copy = life.cache().hold_blocks(decoding->pages, 0, 2);
    const std::vector<cache::FullPage> pages(decoding->pages.full_pages().begin(),
                                             decoding->pages.full_pages().end());
    ASSERT_EQ(pages.size(), 2U);
    ASSERT_TRUE(life.scheduler().state(SequenceId(3)).is<Waiting>());
    life.remove(SequenceId(1), Ending::kAborted);
    life.remove(SequenceId(3), Ending::kAborted);
    turns(3);
    ASSERT_FALSE(testing::Test::HasFatalFailure());
    const auto use = [&](size_t i) { return life.cache().radix().book().use(pages[i]); };
    EXPECT_EQ(use(1), cache::PageUse::kParked) << "no step uses it any more, the copy does";
    life.cache().complete(copy);
    EXPECT_EQ(use(1), cache::PageUse::kFree);
    EXPECT_EQ(life.cache().stats().late_events, 0);
    life.cache().complete(copy);
    submit(4, 1200, 5);
    turns(2);
    life.cache().complete(cache::CacheTicket(999'999));
    EXPECT_EQ(life.cache().stats().late_events, 2);
    while (life.is_busy() || life.scheduler().has_end_captures()) {
      turns(1);
      ASSERT_FALSE(testing::Test::HasFatalFailure());
    }
    EXPECT_EQ(life.ended().size(), 4U);
    EXPECT_EQ(life.num_stuck(), 0);
    EXPECT_EQ(life.scheduler().num_running(), 0);
    EXPECT_EQ(life.scheduler().num_waiting(), 0);
    EXPECT_EQ(life.cache().budget().full(), kCasePages) << "what is used is held by the tree";
    life.cache().flush();
    EXPECT_EQ(life.cache().budget().free_full, kCasePages);
    EXPECT_EQ(life.cache().budget().free_swa, kCasePages);
  }
}

TEST(EngineCaseTest, LeavingClientsAreCountedOnceAndLateMessagesApart) {
  for (const bool overlap : {false, true}) {
    SyntheticExecutor::Options options;
    options.capacity = {
        .num_slots = 2, .max_context = 2000, .max_step_tokens = 512, .vocab_size = 297};
    options.capacity.cache = cache::full_size(kCasePages, kCasePages).cache;
    options.capacity.cache->request_slots = 2;
    options.step_base = std::chrono::milliseconds(1);
    MetricRegistry metrics;
    EngineConfig config;
    config.overlap = overlap;
    Engine engine(config,
                  std::make_unique<SyntheticExecutor>(options),
                  ScriptedBench::shared_tokenizer(),
                  metrics);
    engine.start();
    const auto submit = [&](const std::string& id, int32_t num_prompt, int32_t max_tokens) {
      GenerationRequest request;
      request.id = id;
      for (int32_t i = 0; i < num_prompt; ++i) {
        request.prompt.push_back((i * 37 + id[1]) % 290);
      }
      request.max_new_tokens = max_tokens;
      auto sink = std::make_shared<CollectingSink>();
      EXPECT_TRUE(engine.submit(request, sink).ok());
      return sink;
    };
    const auto r1 = submit("r1", 300, 1000);
    const auto r2 = submit("r2", 300, 50);
    ASSERT_TRUE(r1->wait_for_tokens(1, kPatience));
    const auto r3 = submit("r3", 100, 5);
    engine.abort("r3");
    ASSERT_TRUE(r3->wait_for(kPatience));
    engine.abort("r1");
    ASSERT_TRUE(r1->wait_for(kPatience));
    engine.abort("r1");
    engine.abort("nobody");
    const auto r4 = submit("r4", 1200, 5);
    ASSERT_TRUE(r2->wait_for(kPatience));
    ASSERT_TRUE(r4->wait_for(kPatience));
    EXPECT_EQ(r1->finish().reason, FinishReason::kAbort);
    EXPECT_EQ(r3->finish().reason, FinishReason::kAbort);
    EXPECT_EQ(r2->finish().reason, FinishReason::kLength);
    EXPECT_EQ(r4->finish().reason, FinishReason::kLength);
    EXPECT_TRUE(engine.healthy());
    EXPECT_EQ(engine.stats().num_running, 0);
    EXPECT_EQ(engine.stats().num_waiting, 0);
    const std::string page = metrics.expose();
    EXPECT_NE(page.find("\nsglang:num_aborted_requests_total 2\n"), std::string::npos);
    EXPECT_NE(page.find("\nbaleen:late_events_total 2\n"), std::string::npos);
    EXPECT_TRUE(engine.flush_cache().ok());
  }
}

}  // namespace
}  // namespace baleen::engine
