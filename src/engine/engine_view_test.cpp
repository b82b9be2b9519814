// A look inside a running engine: pools, totals, the cache tree; and when it cannot be had.
#include "engine/engine_view.h"

#include <thread>

#include <gtest/gtest.h>

#include "cache/cache_test_options.h"
#include "engine/engine.h"
#include "engine/engine_test_bench.h"
#include "engine/synthetic_executor.h"

namespace baleen::engine {
namespace {

using std::chrono::milliseconds;

const EngineLook kWithTree{.tree = cache::TreeViewOptions{}};

TEST(EngineViewTest, ShowsPoolsAndTreeOfASharedCache) {
  SyntheticExecutor::Options options;
  options.capacity = {.num_slots = 3, .max_context = 400, .max_step_tokens = 32, .vocab_size = 297};
  options.capacity.cache = cache::small_size(60, 30).cache;
  options.step_base = milliseconds(1);
  MetricRegistry metrics;
  Engine engine(
      {}, std::make_unique<SyntheticExecutor>(options), ScriptedBench::shared_tokenizer(), metrics);
  EXPECT_EQ(engine.look({}, kPatience).status().code, StatusCode::kUnavailable) << "not started";
  engine.start();
  GenerationRequest request;
  request.id = "one";
  request.prompt = cache::some_ids(50);
  for (int32_t& id : request.prompt) {
    id %= 297;
  }
  request.max_new_tokens = 200;
  request.sampling.seed = 5;
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine.submit(request, sink).ok());
  ASSERT_TRUE(sink->wait_for_tokens(3, kPatience));
  const Result<EngineView> running = engine.look(kWithTree, kPatience);
  ASSERT_TRUE(running.ok()) << running.status().message;
  ASSERT_TRUE(running->pools);
  EXPECT_GE(running->pools->pages.used, 4) << "50 tokens in pages of 16";
  EXPECT_EQ(running->prefilled_tokens, 50);
  EXPECT_GE(running->step_s, 0.004) << "the prompt takes two steps, three tokens more";
  ASSERT_TRUE(running->tree);
  ASSERT_FALSE(running->tree->runs.empty());
  EXPECT_EQ(running->tree->runs[0].locks, 1);
  EXPECT_FALSE(engine.look({}, kPatience)->tree) << "not asked for";
  ASSERT_TRUE(sink->wait_for(kPatience));
  // What ended is made resumable in a step of its own, which may still be to come.
  Result<EngineView> idle = engine.look(kWithTree, kPatience);
  for (int i = 0; i < 5000 && idle.ok() && idle->pools->pages.used > 0; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
    idle = engine.look(kWithTree, kPatience);
  }
  ASSERT_TRUE(idle.ok());
  EXPECT_EQ(idle->pools->pages.used, 0);
  EXPECT_GT(idle->pools->pages.kept, 0);
  EXPECT_EQ(idle->tree->runs[0].locks, 0);
  const Result<EngineView> lost =
      engine.look({.tree = cache::TreeViewOptions{.root = cache::FullPage(1 << 20)}}, kPatience);
  ASSERT_TRUE(lost.ok());
  EXPECT_FALSE(lost->tree);
  engine.stop();
  EXPECT_EQ(engine.look({}, kPatience).status().code, StatusCode::kUnavailable);
}

TEST(EngineViewTest, WaitsNoLongerThanAsked) {
  ScriptedBench::Options options;
  options.step_delay = milliseconds(300);
  ScriptedBench bench(options);
  const auto sink = bench.submit(bench.request(bench.script("abc")));
  ASSERT_TRUE(sink->wait_for_tokens(1, kPatience));
  // The engine's thread waits for the step that runs now, or has ended by itself: both are allowed,
  // a wait of a whole step is not what was asked for.
  const Result<EngineView> view = bench.engine().look(kWithTree, milliseconds(1));
  if (!view.ok()) {
    EXPECT_EQ(view.status().code, StatusCode::kUnavailable);
  } else {
    EXPECT_FALSE(view->pools) << "state per slot";
  }
  // Those who give up leave a bounded number of orders behind.
  for (int i = 0; i < 500; ++i) {
    const Result<EngineView> late = bench.engine().look({}, milliseconds(0));
    EXPECT_TRUE(late.ok() || late.status().code == StatusCode::kUnavailable);
  }
  ASSERT_TRUE(sink->wait_for(kPatience));
  EXPECT_TRUE(bench.engine().look({}, kPatience).ok()) << "late orders do no harm";
}

}  // namespace
}  // namespace baleen::engine
