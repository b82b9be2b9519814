// Weights and memory of a running engine change between steps: answers are then those of an engine
// that began with the new weights, nothing that old ones computed is used again, and a failure
// changes nothing. Sums in fixed order, so that equal means equal.

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "runner/model_executor.h"
#include "runner/some_ids_for_tests.h"
#include "text/tokenizer.h"
#include "weights/model_presets.h"
#include "weights/synth.h"

namespace baleen::runner {
namespace {

using engine::CollectingSink;
using engine::Engine;
using engine::PauseMode;

constexpr std::chrono::seconds kPatience{60};

testing::AssertionResult is_ok(const Status& status) {
  return status.ok() ? testing::AssertionSuccess() : testing::AssertionFailure() << status.message;
}

class WeightUpdateTest : public testing::Test {
 protected:
  void SetUp() override {
    const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
    top_ = std::filesystem::path(testing::TempDir()) /
           (std::string(info->test_suite_name()) + "." + info->name());
    std::filesystem::remove_all(top_);
    std::filesystem::create_directories(top_);
    old_ = write("old", 1, weights::tiny_config());
    new_ = write("new", 2, weights::tiny_config());
  }
  void TearDown() override {
    running_.reset();
    std::filesystem::remove_all(top_);
  }

  std::string write(const std::string& name, uint64_t seed, const ModelConfig& config) {
    weights::SynthOptions options;
    options.format = {weights::WeightFormat::kF32, weights::WeightFormat::kF32};
    options.seed = seed;
    weights::write_synthetic(top_ / name, config, options);
    return (top_ / name).string();
  }

  struct Running {
    explicit Running(const std::string& folder, int64_t cache_bytes) {
      model::ForwardConfig forward;
      forward.numerics = "plain+invariant";
      forward.max_context = 1200;
      forward.record_choices = true;
      RunnerConfig runner{.num_slots = 2, .max_step_tokens = 256, .cache_bytes = cache_bytes};
      runner.paint_pages = cache_bytes > 0;
      runner.weights_folder = folder;
      engine::EngineConfig config;
      config.weight_version = "first";
      engine = std::make_unique<Engine>(
          config,
          std::make_unique<ModelExecutor>(model::Model::load(folder, forward), runner, "tiny"),
          text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
          metrics);
      engine->start();
    }
    ~Running() { engine->stop(); }

    std::shared_ptr<CollectingSink> submit(std::vector<int32_t> prompt, int32_t max_new) {
      engine::GenerationRequest request;
      request.id = std::to_string(next++);
      request.prompt = std::move(prompt);
      request.max_new_tokens = max_new;
      request.ignore_eos = true;
      request.want_routes = true;
      request.want_picks = true;
      request.sampling.temperature = 0;
      auto sink = std::make_shared<CollectingSink>();
      const Status status = engine->submit(std::move(request), sink);
      EXPECT_TRUE(status.ok()) << status.message;
      return sink;
    }
    std::shared_ptr<CollectingSink> run(std::vector<int32_t> prompt, int32_t max_new) {
      auto sink = submit(std::move(prompt), max_new);
      EXPECT_TRUE(sink->wait_for(kPatience));
      return sink;
    }

    MetricRegistry metrics;
    std::unique_ptr<Engine> engine;
    int next = 0;
  };
  static constexpr int64_t kCacheBytes = 24 << 20;

  Running& serve(const std::string& folder, int64_t cache_bytes = kCacheBytes) {
    running_ = std::make_unique<Running>(folder, cache_bytes);
    return *running_;
  }
  /// What an engine that never had other weights answers, without a cache.
  static std::vector<int32_t> cold(const std::string& folder,
                                   const std::vector<int32_t>& prompt,
                                   int32_t max_new) {
    Running running(folder, 0);
    return running.run(prompt, max_new)->ids();
  }

  std::filesystem::path top_;
  std::string old_;
  std::string new_;
  std::unique_ptr<Running> running_;
};

TEST_F(WeightUpdateTest, AnswersAreThoseOfTheNewWeightsAndNothingOldIsReused) {
  const std::vector<int32_t> prompt = some_ids(600, 3);
  for (const int64_t cache_bytes : {kCacheBytes, int64_t{0}}) {
    SCOPED_TRACE(cache_bytes);
    Running& server = serve(old_, cache_bytes);
    const auto before = server.run(prompt, 12);
    EXPECT_EQ(before->ids(), cold(old_, prompt, 12));
    EXPECT_EQ(*before->finish().weight_version, "first");
    if (cache_bytes > 0) {
      EXPECT_GT(server.run(prompt, 1)->finish().cached_tokens, 0);
    }
    ASSERT_TRUE(is_ok(server.engine->update_weights({.folder = new_, .version = "second"})));
    const auto after = server.run(prompt, 12);
    EXPECT_EQ(after->ids(), cold(new_, prompt, 12));
    EXPECT_NE(after->ids(), before->ids());
    EXPECT_EQ(after->finish().cached_tokens, 0);
    EXPECT_EQ(*after->finish().weight_version, "second");
    EXPECT_EQ(*server.engine->stats().weight_version, "second");
    EXPECT_NE(after->finish().token_routes->experts, before->finish().token_routes->experts)
        << "the table of routes by token is part of the weights";
    if (cache_bytes > 0) {
      EXPECT_GT(server.run(prompt, 1)->finish().cached_tokens, 0) << "the new ones' own";
    }
  }
}

TEST_F(WeightUpdateTest, RunningRequestsGoOnWithTheNewWeights) {
  Running& server = serve(old_);
  const std::vector<int32_t> prompt = some_ids(40, 5);
  const auto sink = server.submit(prompt, 400);
  ASSERT_TRUE(sink->wait_for_tokens(10, kPatience));
  ASSERT_TRUE(is_ok(server.engine->update_weights({.folder = new_, .keep_paused = true})));
  EXPECT_TRUE(server.engine->stats().is_paused);
  const std::vector<int32_t> told = sink->ids();
  const auto num_told = static_cast<int32_t>(told.size());
  ASSERT_LT(num_told, 400);
  ASSERT_TRUE(is_ok(server.engine->resume()));
  ASSERT_TRUE(sink->wait_for(kPatience));
  EXPECT_EQ(told, cold(old_, prompt, num_told));
  std::vector<int32_t> history = prompt;
  history.insert(history.end(), told.begin(), told.end());
  const std::vector<int32_t> all = sink->ids();
  EXPECT_EQ(std::vector<int32_t>(all.begin() + num_told, all.end()),
            cold(new_, history, 400 - num_told));
}

TEST_F(WeightUpdateTest, HeldRequestsKeepWhatTheyComputedAndNobodyElseSeesIt) {
  Running& server = serve(old_);
  const std::vector<int32_t> prompt = some_ids(600, 5);
  const auto sink = server.submit(prompt, 200);
  ASSERT_TRUE(sink->wait_for_tokens(4, kPatience));
  ASSERT_TRUE(is_ok(server.engine->pause(PauseMode::kInPlace)));
  const Status refused = server.engine->update_weights({.folder = new_});
  EXPECT_EQ(refused.code, StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message.find("held in place"), std::string::npos);
  ASSERT_TRUE(is_ok(server.engine->update_weights({.folder = new_, .flush_cache = false})));
  EXPECT_TRUE(server.engine->stats().is_paused) << "the client paused, the client resumes";
  EXPECT_EQ(server.engine->stats().num_running, 1);
  ASSERT_TRUE(is_ok(server.engine->resume()));
  const auto other = server.run(prompt, 12);
  EXPECT_EQ(other->finish().cached_tokens, 0);
  EXPECT_EQ(other->ids(), cold(new_, prompt, 12));
  ASSERT_TRUE(sink->wait_for(kPatience));
  EXPECT_EQ(sink->ids().size(), 200U);
  // What the held request left is of both weights: not for this one either.
  const auto last = server.run(prompt, 12);
  EXPECT_EQ(last->ids(), cold(new_, prompt, 12));
}

TEST_F(WeightUpdateTest, AFolderThatDoesNotFitChangesNothing) {
  Running& server = serve(old_);
  const std::vector<int32_t> prompt = some_ids(50, 7);
  const std::vector<int32_t> expected = server.run(prompt, 8)->ids();
  ModelConfig other = weights::tiny_config();
  other.routed_scaling_factor *= 2;
  const std::string another = write("another", 1, other);
  std::filesystem::copy(new_, top_ / "torn");
  for (const auto& entry : std::filesystem::directory_iterator(top_ / "torn")) {
    if (entry.path().extension() == ".safetensors") {
      std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) / 2);
    }
  }
  for (const std::string& folder : {(top_ / "none").string(), another, (top_ / "torn").string()}) {
    const Status status = server.engine->update_weights({.folder = folder, .version = "x"});
    EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
    EXPECT_NE(status.message.find(folder), std::string::npos) << status.message;
    const auto after = server.run(prompt, 8);
    EXPECT_EQ(after->ids(), expected);
    EXPECT_EQ(*after->finish().weight_version, "first");
  }
}

TEST_F(WeightUpdateTest, RecordsOfOldWeightsStayWithTheTokensThatTheyDrew) {
  const std::vector<int32_t> prompt = some_ids(40, 5);
  for (const int64_t cache_bytes : {kCacheBytes, int64_t{0}}) {
    SCOPED_TRACE(cache_bytes);
    Running& server = serve(old_, cache_bytes);
    const auto sink = server.submit(prompt, 300);
    ASSERT_TRUE(sink->wait_for_tokens(10, kPatience));
    ASSERT_TRUE(is_ok(
        server.engine->update_weights({.folder = new_, .version = "second", .keep_paused = true})));
    const std::vector<int32_t> told = sink->ids();
    ASSERT_LT(told.size(), 300U);
    ASSERT_TRUE(is_ok(server.engine->resume()));
    ASSERT_TRUE(sink->wait_for(kPatience));
    const std::vector<int32_t> all = sink->ids();
    const auto known = static_cast<int32_t>(prompt.size() + told.size()) - 1;
    const engine::FinishInfo& finish = sink->finish();
    EXPECT_EQ(finish.recomputed_tokens, known);
    ASSERT_EQ(finish.choices->count, 40 + 300 - 1);
    // Each token has the name of the weights that drew it.
    const std::vector<std::string> versions = sink->weight_versions();
    ASSERT_EQ(versions.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(versions[i], i < told.size() ? "first" : "second") << i;
    }
    // Records: what each engine alone says of the same tokens.
    Running old_alone(old_, 0);
    Running new_alone(new_, 0);
    std::vector<int32_t> history = prompt;
    history.insert(history.end(), all.begin(), all.end());
    const auto old_records = old_alone.run(history, 1)->finish().choices;
    const auto new_records = new_alone.run(history, 1)->finish().choices;
    ASSERT_NE(*old_records, *new_records);
    const cache::ChoiceLayout layout = *server.engine->stats().capacity.choices;
    cache::ChoiceRecords expected;
    cache::take_choices(expected, *old_records, known, layout);
    cache::take_choices(expected, *new_records, 40 + 300 - 1, layout);
    EXPECT_EQ(*finish.choices, expected);
  }
}

TEST_F(WeightUpdateTest, ReleasedMemoryComesBackAsItWas) {
  Running& server = serve(old_);
  const std::vector<int32_t> prompt = some_ids(600, 9);
  const std::vector<int32_t> expected = cold(old_, prompt, 30);
  EXPECT_EQ(server.run(prompt, 30)->ids(), expected);
  for (const bool weights_first : {false, true}) {
    const auto running = server.submit(prompt, 30);
    ASSERT_TRUE(running->wait_for_tokens(2, kPatience));
    ASSERT_TRUE(is_ok(server.engine->release_memory({.cache = true})));
    ASSERT_TRUE(is_ok(server.engine->release_memory({.cache = true, .weights = true})));
    EXPECT_EQ(server.engine->resume().code, StatusCode::kInvalidArgument);
    const auto waiting = server.submit(prompt, 30);
    const size_t num_told = running->ids().size();
    ASSERT_TRUE(
        is_ok(server.engine->resume_memory({.cache = !weights_first, .weights = weights_first})));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(running->ids().size(), num_told) << "one part is still missing";
    EXPECT_FALSE(waiting->ended());
    ASSERT_TRUE(is_ok(server.engine->resume_memory({.cache = true, .weights = true})));
    ASSERT_TRUE(running->wait_for(kPatience));
    ASSERT_TRUE(waiting->wait_for(kPatience));
    EXPECT_EQ(running->ids(), expected);
    EXPECT_EQ(waiting->ids(), expected);
  }
}

TEST_F(WeightUpdateTest, AnUpdateBringsReleasedWeightsBack) {
  Running& server = serve(old_);
  const std::vector<int32_t> prompt = some_ids(50, 11);
  ASSERT_TRUE(is_ok(server.engine->release_memory({.weights = true})));
  EXPECT_EQ(server.engine->update_weights({.folder = "none"}).code, StatusCode::kInvalidArgument);
  EXPECT_TRUE(server.engine->stats().released.weights);
  ASSERT_TRUE(is_ok(server.engine->update_weights({.folder = new_})));
  EXPECT_FALSE(server.engine->stats().released.weights);
  EXPECT_EQ(server.run(prompt, 8)->ids(), cold(new_, prompt, 8));
  // The latest folder is what a later release comes back from.
  ASSERT_TRUE(is_ok(server.engine->release_memory({.weights = true})));
  ASSERT_TRUE(is_ok(server.engine->resume_memory({.weights = true})));
  EXPECT_EQ(server.run(prompt, 8)->ids(), cold(new_, prompt, 8));
}

TEST_F(WeightUpdateTest, APauseOfTheClientOutlivesReleasedMemory) {
  Running& server = serve(old_);
  ASSERT_TRUE(is_ok(server.engine->release_memory({.cache = true})));
  ASSERT_TRUE(is_ok(server.engine->pause(PauseMode::kRetract)));
  ASSERT_TRUE(is_ok(server.engine->resume_memory({.cache = true})));
  EXPECT_TRUE(server.engine->stats().is_paused);
  ASSERT_TRUE(is_ok(server.engine->resume()));
  EXPECT_EQ(server.run(some_ids(20, 1), 3)->ids().size(), 3U);
}

}  // namespace
}  // namespace baleen::runner
