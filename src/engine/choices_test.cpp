// Recorded choices that a request asked for reach its end: of every position that ran, once, none
// of refused drafts, from where they were asked for.

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_test_bench.h"
#include "engine/scripted_choices.h"

namespace baleen::engine {
namespace {

cache::ChoiceLayout recorded_layout() {
  cache::ChoiceLayout layout;
  layout.routed_layers = {1, 2};
  layout.picking_layers = {1};
  layout.num_experts = 300;
  layout.experts_per_token = 2;
  layout.ratio = 4;
  layout.topk = 3;
  return layout;
}

ScriptedBench::Options recording() {
  ScriptedBench::Options options;
  options.config.max_prefill_chunk = 7;
  options.capacity.choices = recorded_layout();
  return options;
}

/// What the prompt and the answer but its last token chose, from `from` on.
cache::ChoiceRecords expected_choices(const std::vector<int32_t>& prompt,
                                      const std::vector<int32_t>& answer,
                                      int32_t from) {
  std::vector<int32_t> ids = prompt;
  if (!answer.empty()) {
    ids.insert(ids.end(), answer.begin(), answer.end() - 1);
  }
  return scripted_choices(
      recorded_layout(), std::span(ids).subspan(static_cast<size_t>(from)), from);
}

TEST(EngineChoicesTest, EveryTokenThatRanHasOneRecord) {
  ScriptedBench bench(recording());
  // Single tokens and steps of several, as accepted drafts give.
  Script script;
  script.steps = {{20}, {21, 22, 23}, {24}, {25, 26}, {27}, {28, 29, 30, 31}};
  for (const int32_t num_prompt : {1, 3, 7, 8, 30}) {
    for (const int32_t from : {0, 1}) {
      for (const int32_t max_new : {0, 1, 2, 3, 9, 100}) {
        GenerationRequest request = bench.request(bench.script(script), num_prompt);
        const std::vector<int32_t> prompt = request.prompt;
        request.max_new_tokens = max_new;
        request.want_routes = true;
        request.want_picks = true;
        request.choices_from = from;
        const auto sink = bench.run(std::move(request));
        ASSERT_TRUE(sink->finish().choices.has_value());
        EXPECT_EQ(*sink->finish().choices, expected_choices(prompt, sink->ids(), from))
            << num_prompt << " prompt tokens, " << max_new << " new, from " << from;
      }
    }
  }
}

TEST(EngineChoicesTest, AStopInsideAcceptedTokensEndsTheRecord) {
  ScriptedBench bench(recording());
  Script script;
  script.steps = {{20}, {21, 22, 23, 24}, {25}};
  GenerationRequest request = bench.request(bench.script(script), 5);
  const std::vector<int32_t> prompt = request.prompt;
  request.want_routes = true;
  request.want_picks = true;
  request.stop_token_ids = {22};
  const auto sink = bench.run(std::move(request));
  ASSERT_EQ(sink->ids(), (std::vector<int32_t>{20, 21, 22}));
  EXPECT_EQ(*sink->finish().choices, expected_choices(prompt, sink->ids(), 0));
}

TEST(EngineChoicesTest, WhatWasNotAskedForIsEmpty) {
  ScriptedBench bench(recording());
  const auto run = [&](bool routes, bool picks) {
    GenerationRequest request = bench.request(bench.script("abcdefgh"), 20);
    request.want_routes = routes;
    request.want_picks = picks;
    return bench.run(std::move(request))->finish().choices;
  };
  EXPECT_FALSE(run(false, false).has_value());
  const auto both = run(true, true);
  const auto routes = run(true, false);
  const auto picks = run(false, true);
  EXPECT_FALSE(both->routes.empty());
  EXPECT_FALSE(both->picks.empty());
  EXPECT_TRUE(routes->picks.empty());
  EXPECT_TRUE(picks->routes.empty());
  EXPECT_EQ(routes->routes.size(), both->routes.size());
  EXPECT_EQ(picks->picks.size(), both->picks.size());
}

TEST(EngineChoicesTest, AnAbortedRequestKeepsWhatItHas) {
  ScriptedBench::Options options = recording();
  options.step_delay = std::chrono::milliseconds(2);
  ScriptedBench bench(options);
  GenerationRequest request = bench.request(bench.script("abcdefgh", ScriptEnd::kRepeat), 12);
  const std::vector<int32_t> prompt = request.prompt;
  const std::string id = request.id;
  request.max_new_tokens = 300;
  request.want_routes = true;
  request.want_picks = true;
  const auto sink = bench.submit(std::move(request));
  ASSERT_TRUE(sink->wait_for_tokens(5, kPatience));
  bench.engine().abort(id);
  ASSERT_TRUE(sink->wait_for(kPatience));
  EXPECT_EQ(sink->finish().reason, FinishReason::kAbort);
  EXPECT_EQ(*sink->finish().choices, expected_choices(prompt, sink->ids(), 0));
}

TEST(EngineChoicesTest, AnExecutorThatRecordsNothingRefusesTheWish) {
  ScriptedBench bench;
  for (const bool routes : {true, false}) {
    GenerationRequest request = bench.request(bench.script("abc"));
    request.want_routes = routes;
    request.want_picks = !routes;
    const Status status = bench.engine().submit(request, std::make_shared<CollectingSink>());
    EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
    EXPECT_EQ(status.param, routes ? "want_routes" : "want_picks");
  }
}

}  // namespace
}  // namespace baleen::engine
