// The load generator: lengths, plans, data sets, figures, and what it makes of a server's answers.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "apps/bench/load/dataset.h"
#include "apps/bench/load/load_figures.h"
#include "apps/bench/load/load_plot.h"
#include "apps/bench/load/load_report.h"
#include "apps/bench/load/load_run.h"
#include "base/error.h"
#include "http/response_writer.h"
#include "http/server.h"

namespace baleen::apps {
namespace {

namespace json = boost::json;

double mean_of(const LengthLaw& law) {
  std::mt19937_64 generator(7);
  double sum = 0.0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    sum += law.draw(generator);
  }
  return sum / kDraws;
}

TEST(LengthLawTest, DrawsWhatItsNameSays) {
  EXPECT_EQ(mean_of(LengthLaw::parse("17", "x")), 17.0);
  EXPECT_NEAR(mean_of(LengthLaw::parse("100-300", "x")), 200.0, 2.0);
  EXPECT_NEAR(mean_of(LengthLaw::parse("normal:500:50", "x")), 500.0, 2.0);
  EXPECT_NEAR(mean_of(LengthLaw::parse("lognormal:200:0.5", "x")), 200.0 * std::exp(0.125), 4.0);
  EXPECT_NEAR(mean_of(LengthLaw::parse("exponential:250", "x")), 250.0, 7.0);
  std::mt19937_64 generator(1);
  std::set<int32_t> seen;
  for (int i = 0; i < 1000; ++i) {
    seen.insert(LengthLaw::parse("2-4", "x").draw(generator));
    EXPECT_GE(LengthLaw::parse("normal:1:50", "x").draw(generator), 1);
  }
  EXPECT_EQ(seen, (std::set<int32_t>{2, 3, 4}));
}

TEST(LengthLawTest, RefusesWhatIsNoLaw) {
  for (const char* text : {"",
                           "x",
                           "0",
                           "-5",
                           "5-",
                           "9-3",
                           "1-2-3",
                           "normal:5",
                           "normal:a:1",
                           "lognormal:5:1:1",
                           "exponential:0",
                           "gauss:1:2",
                           "1e99",
                           "nan"}) {
    try {
      LengthLaw::parse(text, "--prompt-tokens");
      ADD_FAILURE() << text;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("--prompt-tokens"), std::string::npos);
    }
  }
}

TEST(LoadPlanTest, IsAFunctionOfItsSeed) {
  LoadMix mix;
  mix.turns = 3;
  mix.groups = 4;
  const LoadLevel level{.rate = 50.0, .concurrency = 8};
  const LoadPlan plan = make_load_plan(mix, 1000, level, 5);
  const LoadPlan again = make_load_plan(mix, 1000, level, 5);
  const LoadPlan other = make_load_plan(mix, 1000, level, 6);
  ASSERT_EQ(plan.conversations.size(), 334U);
  EXPECT_EQ(plan.num_requests, 1002);
  std::set<uint64_t> seeds;
  double before = 0.0;
  for (size_t i = 0; i < plan.conversations.size(); ++i) {
    const LoadConversation& one = plan.conversations[i];
    EXPECT_EQ(one.text_seed, again.conversations[i].text_seed);
    EXPECT_EQ(one.arrival_s, again.conversations[i].arrival_s);
    EXPECT_EQ(one.group, static_cast<int32_t>(i % 4));
    EXPECT_GE(one.arrival_s, before);
    before = one.arrival_s;
    seeds.insert(one.text_seed);
  }
  EXPECT_EQ(seeds.size(), plan.conversations.size());
  EXPECT_NE(plan.conversations[1].text_seed, other.conversations[1].text_seed);
  // 333 gaps of 1/50 s in the mean, the deviation of their sum is sqrt(333)/50 s.
  EXPECT_NEAR(before, 333.0 / 50.0, 4.0 * std::sqrt(333.0) / 50.0);
  EXPECT_EQ(make_load_plan(mix, 1, {}, 5).conversations[0].arrival_s, 0.0);
  EXPECT_EQ(made_up_words(9, 3), made_up_words(9, 5).substr(0, made_up_words(9, 3).size()));
}

TEST(FiguresTest, PercentilesLieBetweenNeighbours) {
  const Spread spread = spread_of({4.0, 1.0, 3.0, 2.0});
  EXPECT_DOUBLE_EQ(spread.p50, 2.5);
  EXPECT_DOUBLE_EQ(spread.p90, 3.7);
  EXPECT_DOUBLE_EQ(spread.p99, 3.97);
  EXPECT_DOUBLE_EQ(spread.mean, 2.5);
  EXPECT_DOUBLE_EQ(spread.max, 4.0);
  EXPECT_EQ(spread_of({}).count, 0);
  EXPECT_DOUBLE_EQ(spread_of({8.0}).p99, 8.0);
}

TEST(FiguresTest, CountWhatWasAnswered) {
  LoadRun run;
  run.level.rate = 1.0;
  run.wall_s = 4.0;
  run.records.push_back({.ok = true,
                         .wanted_s = 0.9,
                         .begin_s = 1.0,
                         .first_s = 1.5,
                         .last_s = 2.0,
                         .end_s = 2.25,
                         .gaps_s = {0.2, 0.3},
                         .prompt_tokens = 30,
                         .cached_tokens = 10,
                         .answer_tokens = 6});
  run.records.push_back({.ok = false, .error = "busy", .begin_s = 0.0, .end_s = 1.0});
  run.drafts = {.verify_steps = 10, .drafted = 20, .accepted = 15};
  const LoadFigures f = summarize(run);
  EXPECT_EQ(f.requests, 1);
  EXPECT_EQ(f.failed, 1);
  EXPECT_EQ(f.first_error, "busy");
  EXPECT_DOUBLE_EQ(f.first_token_ms.p50, 500.0);
  EXPECT_DOUBLE_EQ(f.gap_ms.p50, 250.0);
  EXPECT_DOUBLE_EQ(f.per_token_ms.p50, 100.0);
  EXPECT_DOUBLE_EQ(f.end_to_end_ms.p50, 1250.0);
  EXPECT_NEAR(f.late_ms.p50, 100.0, 1e-9);
  EXPECT_DOUBLE_EQ(f.answer_tokens_per_s, 1.5);
  EXPECT_DOUBLE_EQ(f.total_tokens_per_s, 9.0);
  EXPECT_DOUBLE_EQ(f.mean_running, 2.25 / 4.0);
  EXPECT_DOUBLE_EQ(*f.hit_rate, 1.0 / 3.0);
  EXPECT_DOUBLE_EQ(*f.accept_rate, 0.75);
  EXPECT_DOUBLE_EQ(*f.accept_length, 2.5);
  run.drafts.reset();
  run.records[0].cached_tokens = -1;
  EXPECT_FALSE(summarize(run).hit_rate);
  EXPECT_FALSE(summarize(run).accept_length);
}

TEST(FiguresTest, MetricsOfSeveralSeriesAreAdded) {
  const std::string page =
      "# HELP a_total x\na_total{b=\"1 } 2\"} 3\na_total{b=\"2\"} 4.5\na_total_more 9\nc 7\n";
  EXPECT_DOUBLE_EQ(*metric_sum(page, "a_total"), 7.5);
  EXPECT_DOUBLE_EQ(*metric_sum(page, "c"), 7.0);
  EXPECT_FALSE(metric_sum(page, "a"));
}

TEST(DatasetTest, ReadsItsForms) {
  const std::string file = std::filesystem::temp_directory_path() / "baleen_dataset_test.jsonl";
  const auto read = [&](const std::string& text) {
    std::ofstream(file) << text;
    return read_dataset(file);
  };
  const std::string lines =
      "{\"prompt\": \"a\", \"answer_tokens\": 9}\n\n"
      "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", "
      "\"content\": \"b\"}, {\"role\": \"assistant\", \"content\": \"no\"}, {\"role\": \"user\", "
      "\"content\": \"c\"}]}\n"
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"d\"}, {\"from\": \"gpt\", "
      "\"value\": \"no\"}]}";
  const std::vector<LoadConversation> all = read(lines);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].turns.at(0).text, "a");
  EXPECT_EQ(all[0].turns.at(0).answer_tokens, 9);
  EXPECT_EQ(all[1].system, "s");
  ASSERT_EQ(all[1].turns.size(), 2U);
  EXPECT_EQ(all[1].turns[1].text, "c");
  EXPECT_EQ(all[2].turns.at(0).text, "d");
  EXPECT_EQ(read("[{\"prompt\": \"x\"}, {\"prompt\": \"y\"}]").size(), 2U);
  for (const char* text : {"",
                           "{",
                           "{\"prompt\": 1}",
                           "{\"messages\": []}",
                           "{\"messages\": [{\"role\": \"user\"}]}",
                           "[1]",
                           "{\"prompt\": \"a\", \"answer_tokens\": 0}"}) {
    EXPECT_THROW(read(text), ConfigError) << text;
  }
  std::filesystem::remove(file);
  EXPECT_THROW(read_dataset(file), SystemError);
}

enum class StreamEnd { kDone, kReason, kNothing };

/// A server of the plainest kind: chat streams and nothing more.
class PlainServer {
 public:
  explicit PlainServer(bool refuses_extras, StreamEnd end = StreamEnd::kDone)
      : refuses_extras_(refuses_extras), end_(end) {
    http::Router router;
    router.add("GET", "/v1/models", [](http::Request&&, http::ResponseWriter writer) {
      writer.respond(http::Response::json(200, R"({"data": [{"id": "plain"}]})"));
    });
    router.add("POST",
               "/v1/chat/completions",
               [this](http::Request&& request, http::ResponseWriter writer) {
                 answer(json::parse(request.body).as_object(), std::move(writer));
               });
    http::ServerConfig config;
    config.port = 0;
    config.handler_threads = 8;
    server_ = std::make_unique<http::Server>(config, std::move(router), http::ServerHooks{});
    server_->start();
  }
  ~PlainServer() { server_->shutdown(std::chrono::seconds(5)); }

  std::string url() const { return server_->url(); }
  std::vector<size_t> message_counts() {
    const std::lock_guard lock(mutex_);
    return message_counts_;
  }
  std::map<std::string, int> system_texts() {
    const std::lock_guard lock(mutex_);
    return system_texts_;
  }

 private:
  void answer(const json::object& body, http::ResponseWriter writer) {
    const bool has_extras = body.contains("ignore_eos") || body.contains("stream_options");
    if (refuses_extras_ && has_extras) {
      writer.respond(http::Response::json(400, R"({"detail": "extra field"})"));
      return;
    }
    const json::array& messages = body.at("messages").as_array();
    {
      const std::lock_guard lock(mutex_);
      message_counts_.push_back(messages.size());
      if (messages.front().at("role") == "system") {
        ++system_texts_[std::string(messages.front().at("content").as_string())];
      }
    }
    http::EventStream events = std::move(writer).start_events();
    for (int64_t i = 0; i < body.at("max_tokens").as_int64(); ++i) {
      events.send(R"({"choices": [{"delta": {"content": "x"}}]})");
    }
    if (body.contains("stream_options")) {
      events.send(R"({"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 3}})");
    }
    if (end_ == StreamEnd::kDone) {
      events.send("[DONE]");
    } else if (end_ == StreamEnd::kReason) {
      events.send(R"({"choices": [{"delta": {}, "finish_reason": "length"}]})");
    }
    events.close();
  }

  const bool refuses_extras_;
  const StreamEnd end_;
  std::unique_ptr<http::Server> server_;
  std::mutex mutex_;
  std::vector<size_t> message_counts_;
  std::map<std::string, int> system_texts_;
};

TEST(LoadTest, SaysWhatAPlainServerDoesNotTell) {
  PlainServer server(true);
  const LoadTarget target = probe_target({.url = server.url() + "/v1/"});
  EXPECT_EQ(target.model, "plain");
  EXPECT_FALSE(target.fixed_lengths);
  EXPECT_FALSE(target.asks_usage);
  EXPECT_FALSE(target.has_metrics);
  std::string notes;
  for (const std::string& note : target.notes) {
    notes += note + "\n";
  }
  for (const char* word : {"ignore_eos", "token counts", "acceptance"}) {
    EXPECT_NE(notes.find(word), std::string::npos) << notes;
  }
  LoadMix mix;
  mix.answer_tokens = LengthLaw::parse("3", "x");
  const LoadLevel level{.rate = 0.0, .concurrency = 4};
  const LoadRun run = run_load(target, mix, make_load_plan(mix, 20, level, 1), level, {});
  const LoadFigures f = summarize(run);
  EXPECT_EQ(f.requests, 20);
  EXPECT_EQ(f.failed, 0) << f.first_error;
  EXPECT_EQ(f.answer_tokens, 60) << "pieces are counted";
  EXPECT_FALSE(f.hit_rate);
}

TEST(LoadTest, AStreamEndsWithDoneOrWithItsReason) {
  PlainServer named(true, StreamEnd::kReason);
  const LoadTarget target = probe_target({.url = named.url()});
  const LoadLevel level{.rate = 0.0, .concurrency = 2};
  const LoadFigures f = summarize(run_load(target, {}, make_load_plan({}, 6, level, 1), level, {}));
  EXPECT_EQ(f.requests, 6);
  EXPECT_EQ(f.failed, 0) << f.first_error;
  PlainServer cut(true, StreamEnd::kNothing);
  try {
    probe_target({.url = cut.url()});
    ADD_FAILURE() << "a stream without an end is no answer";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("finish_reason or [DONE]"), std::string::npos)
        << error.what();
  }
}

TEST(LoadTest, ConversationsGoOnBehindTheirSharedPrefix) {
  PlainServer server(false);
  const LoadTarget target = probe_target({.url = server.url()});
  EXPECT_TRUE(target.fixed_lengths);
  EXPECT_TRUE(target.reports_usage);
  EXPECT_FALSE(target.reports_cached);
  LoadMix mix;
  mix.turns = 3;
  mix.groups = 2;
  mix.shared_tokens = 40;
  const LoadLevel level{.rate = 200.0, .concurrency = 6};
  const LoadRun run = run_load(target, mix, make_load_plan(mix, 18, level, 1), level, {});
  EXPECT_EQ(summarize(run).requests, 18);
  std::map<size_t, int> lengths;
  for (const size_t count : server.message_counts()) {
    ++lengths[count];
  }
  // System and user, then an answer and a user more per turn.
  EXPECT_EQ(lengths[2], 6);
  EXPECT_EQ(lengths[4], 6);
  EXPECT_EQ(lengths[6], 6);
  const std::map<std::string, int> texts = server.system_texts();
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_EQ(texts.begin()->second, 9);
}

TEST(LoadTest, AServerThatIsNotThereIsNamed) {
  try {
    probe_target({.url = "http://127.0.0.1:1", .model = "m"});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("127.0.0.1:1"), std::string::npos) << error.what();
  }
}

TEST(LoadTest, ReportsAgreeWithEachOther) {
  LoadRow row;
  row.server = "a<b, c";
  row.run.level = {.rate = 2.0, .concurrency = 4};
  row.run.wall_s = 1.0;
  row.run.records.push_back({.ok = true,
                             .error = {},
                             .begin_s = 0.0,
                             .first_s = 0.1,
                             .last_s = 0.2,
                             .end_s = 0.3,
                             .gaps_s = {0.1},
                             .answer_tokens = 2});
  row.figures = summarize(row.run);
  const std::string header = load_csv_header();
  const std::string line = load_csv_line(row);
  EXPECT_EQ(std::count(header.begin(), header.end(), ','),
            std::count(line.begin(), line.end(), ','));
  const json::object object = load_row_json(row);
  EXPECT_DOUBLE_EQ(object.at("first_token_ms").at("p50").as_double(), 100.0);
  EXPECT_EQ(object.at("requests").as_array().size(), 1U);
  EXPECT_TRUE(object.at("hit_rate").is_null());
  const std::string svg = load_plot({row});
  EXPECT_NE(svg.find("a&lt;b"), std::string::npos);
  EXPECT_EQ(svg.find("a<b"), std::string::npos);
  EXPECT_NE(load_plot({}).find("<svg"), std::string::npos);
}

}  // namespace
}  // namespace baleen::apps
