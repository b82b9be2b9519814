// The live view's stream and the cache tree, over HTTP and by themselves.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "server/live/live_feed.h"
#include "server/live/live_json.h"
#include "server/live/live_server.h"
#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

/// The first `count` events of /live.
std::vector<json::value> live_events(ScriptedApi& api, size_t count) {
  std::vector<json::value> events;
  http::SseReader reader;
  http::Client client = api.client();
  const Result<http::Response> answer =
      client.stream({"GET", "/live", {}, ""}, [&](std::string_view piece) {
        reader.push(
            piece, [&](const http::SseEvent& event) { events.push_back(json::parse(event.data)); });
        return events.size() < count;
      });
  EXPECT_TRUE(answer.ok()) << answer.status().message;
  return events;
}

TEST(LiveTest, TellsTotalsThatGrowWithTheWork) {
  ScriptedApi api;
  api.server->live_series().add("reward", 3, 0.5);
  const json::value before = live_events(api, 1).at(0);
  EXPECT_EQ(before.at("state"), "running");
  EXPECT_EQ(before.at("generated_tokens").as_int64(), 0);
  EXPECT_EQ(before.at("slots").as_int64(), 64);
  EXPECT_EQ(before.at("curves").at("reward").as_double(), 0.5);
  EXPECT_EQ(before.at("curve_points").as_int64(), 1);
  EXPECT_TRUE(before.at("cache").is_null()) << "the scripted executor shares nothing";
  EXPECT_EQ(before.at("pools").as_array().size(), 0U);
  EXPECT_GT(before.at("process").at("resident_bytes").as_int64(), 1 << 20);
  api.emit("abcdef");
  const json::value answer = api.ok(kTextPath, R"({"model": "m", "prompt": "qrs"})");
  const int64_t prompt = answer.at("usage").at("prompt_tokens").as_int64();
  const int64_t drawn = answer.at("usage").at("completion_tokens").as_int64();
  const json::value after = live_events(api, 1).at(0);
  EXPECT_EQ(after.at("prefilled_tokens").as_int64(), prompt);
  EXPECT_EQ(after.at("generated_tokens").as_int64(), drawn);
  EXPECT_GT(after.at("steps").as_int64(), before.at("steps").as_int64());
  EXPECT_GT(after.at("time_s").as_double(), before.at("time_s").as_double());
  EXPECT_GT(after.at("step_s").as_double(), 0.0);
}

TEST(LiveTest, EveryViewerGetsTheSameEventsUntilTheServerStops) {
  ScriptedApi api;
  constexpr int kViewers = 10;
  std::atomic<int> num_ended{0};
  std::array<std::atomic<int>, kViewers> num_events{};
  std::vector<std::jthread> viewers;
  for (int i = 0; i < kViewers; ++i) {
    viewers.emplace_back([&, i] {
      http::SseReader reader;
      http::Client client = api.client();
      const Result<http::Response> answer =
          client.stream({"GET", "/live", {}, ""}, [&](std::string_view piece) {
            reader.push(piece, [&](const http::SseEvent&) { ++num_events[i]; });
            return true;
          });
      num_ended += answer.ok() ? 1 : 0;
    });
  }
  // Each of them, not their sum: who has not come yet when the server stops has no stream to end.
  const auto all_look = [&] {
    return std::ranges::all_of(num_events, [](const auto& count) { return count >= 2; });
  };
  for (int i = 0; i < 3000 && !all_look(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(all_look());
  EXPECT_TRUE(api.server->drain()) << "a viewer holds nothing up";
  viewers.clear();
  EXPECT_EQ(num_ended, kViewers) << "each stream has its proper end";
}

TEST(LiveTest, TheTreeNeedsACacheAndAPage) {
  ScriptedApi api;
  const http::Response tree = *api.client().get("/live/tree");
  EXPECT_EQ(tree.status, 200);
  EXPECT_EQ(json::parse(tree.body).at("has_cache"), false);
  EXPECT_EQ(json::parse(tree.body).at("runs").as_array().size(), 0U);
  for (const char* query : {"?root=x", "?root=-1", "?root=1e9", "?rot=1", "?root="}) {
    const http::Response answer = *api.client().get(std::string("/live/tree") + query);
    EXPECT_EQ(answer.status, 400) << query;
  }
}

TEST(LiveTest, GivesThePointsOfEveryCurve) {
  ScriptedApi api;
  EXPECT_EQ(json::parse(api.client().get("/live/curves")->body),
            json::parse(R"({"curve_points": 0, "curves": {}})"));
  api.server->live_series().add("reward", 0, 0.25);
  api.server->live_series().add("reward", 1, 0.5);
  api.server->live_series().add("drift", 1, 0.0);
  EXPECT_EQ(json::parse(api.client().get("/live/curves")->body),
            json::parse(R"({"curve_points": 3, "curves": {"drift": [[1E0, 0E0]],
                      "reward": [[0E0, 2.5E-1], [1E0, 5E-1]]}})"));
}

TEST(LiveServerTest, ShowsTheLiveViewOfAnEngineAndTakesNoRequests) {
  ScriptedApi api;
  http::ServerConfig config;
  config.port = 0;
  auto live = std::make_unique<LiveServer>(config, *api.engine);
  live->start();
  live->series().add("reward", 7, 0.5);
  http::Client client(live->url(), {});
  EXPECT_EQ(client.get("/")->status, 200);
  EXPECT_TRUE(json::parse(client.get("/v1/models")->body).at("data").as_array().empty());
  EXPECT_EQ(json::parse(client.get("/live/curves")->body).at("curve_points").as_int64(), 1);
  EXPECT_EQ(client.get("/live/tree")->status, 200);
  const Result<http::Response> asked =
      client.send({"POST", "/v1/completions", {}, R"({"model": "m", "prompt": "x"})"});
  EXPECT_EQ(asked->status, 404);
  EXPECT_TRUE(json::parse(asked->body).at("error").at("message").is_string());
  std::atomic<int> num_events{0};
  std::jthread viewer([&] {
    http::SseReader reader;
    http::Client looking(live->url(), {});
    const Result<http::Response> answer =
        looking.stream({"GET", "/live", {}, ""}, [&](std::string_view piece) {
          reader.push(piece, [&](const http::SseEvent& event) {
            num_events += json::parse(event.data).at("curves").at("reward") == 0.5 ? 1 : 0;
          });
          return true;
        });
    EXPECT_TRUE(answer.ok()) << "the stream has its proper end";
  });
  while (num_events == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  live.reset();  // or this test hangs
}

TEST(LiveSeriesTest, KeepsTheLatestOfABoundedNumberOfNames) {
  LiveSeries series;
  EXPECT_TRUE(series.add("loss", 0, 2.0));
  EXPECT_TRUE(series.add("loss", 1, 1.0));
  EXPECT_FALSE(series.add("loss", 2, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_FALSE(series.add("loss", std::numeric_limits<double>::infinity(), 1.0));
  EXPECT_EQ(series.latest(), (std::map<std::string, double>{{"loss", 1.0}}));
  EXPECT_EQ(series.num_added(), 2);
  for (size_t i = 0; i < 2 * LiveSeries::kMostNames; ++i) {
    series.add("n" + std::to_string(i), 0, 1.0);
  }
  EXPECT_EQ(series.latest().size(), LiveSeries::kMostNames);
  EXPECT_TRUE(series.add("loss", 3, 0.5)) << "a known name goes on";
}

TEST(LiveSeriesTest, KeepsTheShapeOfALongCurve) {
  LiveSeries series;
  constexpr int64_t kPoints = 10 * LiveSeries::kMostPoints + 3;
  for (int64_t i = 0; i < kPoints; ++i) {
    series.add("n", static_cast<double>(i), static_cast<double>(2 * i));
    const std::vector<LiveSeries::Point> points = series.curves().at("n");
    ASSERT_LE(points.size(), LiveSeries::kMostPoints + 1);
    ASSERT_GE(points.size(), std::min<size_t>(i + 1, LiveSeries::kMostPoints / 2));
    ASSERT_EQ(points.front().at, 0.0);
    ASSERT_EQ(points.back().at, static_cast<double>(i));
  }
  const std::vector<LiveSeries::Point> points = series.curves().at("n");
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(points[i].value, 2 * points[i].at);
    if (i > 0 && i + 1 < points.size()) {
      EXPECT_EQ(points[i].at - points[i - 1].at, 16.0) << "evenly spread";
    }
  }
}

TEST(LiveJsonTest, TellsPoolsReasonsAndRuns) {
  LiveMoment moment;
  moment.stats.drafts = {
      .verify_steps = 9, .drafted = 12, .accepted = 7, .drafted_at = {9, 5}, .accepted_at = {5, 2}};
  moment.stats.late_step_s = 2.5;
  moment.stats.capacity.cache.emplace();
  moment.stats.cache.cut_hits[static_cast<size_t>(cache::CutReason::kWindowGone)] = 3;
  moment.stats.cache.lost_tokens[static_cast<size_t>(cache::CutReason::kWindowGone)] = 700;
  moment.view.pools.emplace();
  moment.view.pools->pages = {.total = 10, .used = 4, .kept = 5};
  const json::value event = live_json(moment);
  EXPECT_EQ(event.at("cache").at("cut").at("window_gone").at("hits").as_int64(), 3);
  EXPECT_EQ(event.at("cache").at("cut").at("window_gone").at("lost_tokens").as_int64(), 700);
  EXPECT_EQ(event.at("pools").as_array().size(), 2U) << "pools without room are left out";
  EXPECT_EQ(event.at("pools").at(0).at("kept").as_int64(), 5);
  EXPECT_EQ(event.at("drafts").at("verify_steps").as_int64(), 9);
  EXPECT_EQ(event.at("drafts").at("tried"), (json::value(json::array{9, 5})));
  EXPECT_EQ(event.at("drafts").at("stood"), (json::value(json::array{5, 2})));
  EXPECT_EQ(event.at("late_step_s").as_double(), 2.5);

  cache::TreeView& tree = moment.view.tree.emplace();
  tree.root = cache::FullPage(0);
  cache::TreeViewRun& run = tree.runs.emplace_back();
  run.first = cache::FullPage(7);
  run.last = cache::FullPage(9);
  run.hash = 0xabcULL;
  run.points.push_back({.position = 300, .kind = cache::PointKind::kTurn, .pins = 1});
  const json::value drawn = tree_json(moment.view);
  EXPECT_EQ(drawn.at("has_cache"), true);
  EXPECT_EQ(drawn.at("runs").at(0).at("first_page").as_int64(), 7);
  EXPECT_EQ(drawn.at("runs").at(0).at("hash"), "0000000000000abc");
  EXPECT_EQ(drawn.at("runs").at(0).at("points").at(0).at("position").as_int64(), 300);
}

}  // namespace
}  // namespace baleen::server
