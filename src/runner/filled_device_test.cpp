// A cache that takes what a device has left, by a path that says how much that is: sizes, and what
// happens when weights or cache are wanted again and find no room.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/choice_table.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "runner/forgetful_path_test.h"
#include "runner/model_executor.h"
#include "runner/some_ids_for_tests.h"
#include "text/tokenizer.h"
#include "weights/synth.h"

namespace baleen::runner {
namespace {

constexpr int64_t kRoom = 64 << 20;
constexpr int64_t kKeptFree = 3 << 20;

TEST(FilledDeviceTest, TheCacheTakesWhatTheDeviceHasLeft) {
  PathUse use;
  use.free_bytes = kRoom + kKeptFree;
  RunnerConfig runner{.num_slots = 2,
                      .max_step_tokens = 128,
                      .cache_bytes = bytes_of_pages(2),
                      .fill_device = true,
                      .spare_bytes = kKeptFree};
  runner.decode_path = [&](const DecodePathContext& context) {
    return std::make_unique<ForgetfulPath>(context, 3000, use, /*prompts=*/true);
  };
  const auto pages = [](const ModelExecutor& executor) {
    const engine::ExecutorCapacity capacity = executor.capacity();
    return std::pair(capacity.cache->sizes.full_pages, capacity.cache->sizes.swa_pages);
  };
  ModelExecutor filled(fixed_order_model(), runner, "tiny");
  EXPECT_EQ(use.pool_changes, 1);
  // Of a released cache the sizes stay, whatever is free by then: the engine has its pages.
  use.free_bytes *= 2;
  const auto at_start = pages(filled);
  EXPECT_TRUE(filled.release_memory({.cache = true}).ok());
  EXPECT_TRUE(filled.resume_memory({.cache = true}).ok());
  EXPECT_EQ(pages(filled), at_start);
  EXPECT_EQ(use.pool_changes, 2);
  // A path that does not know keeps its pools.
  use.free_bytes = -1;
  ModelExecutor unaware(fixed_order_model(), runner, "tiny");
  EXPECT_EQ(use.pool_changes, 2);
  EXPECT_LT(pages(unaware), at_start);
  runner.fill_device = false;
  runner.cache_bytes = kRoom;
  ModelExecutor roomy(fixed_order_model(), runner, "tiny");
  EXPECT_EQ(pages(roomy), at_start);
  // Of a model that records, no more pages than the host has room for records of.
  const model::Model recording = fixed_order_model(0, /*record_choices=*/true);
  use.free_bytes = kRoom + kKeptFree;
  runner.fill_device = true;
  runner.cache_bytes = bytes_of_pages(2);
  runner.record_bytes =
      100 * cache::ChoiceTable::most_page_bytes(recording.choice_layout(), recording.max_context());
  ModelExecutor recorded(fixed_order_model(0, true), runner, "tiny");
  EXPECT_LE(pages(recorded).first, 100);
  EXPECT_GE(pages(recorded).first, 90);
  EXPECT_LT(pages(recorded).first, at_start.first);
  // Less than a page is a start that fails.
  use.free_bytes = kKeptFree;
  runner.fill_device = true;
  EXPECT_THROW(ModelExecutor(fixed_order_model(), runner, "tiny"), ConfigError);
}

/// An engine on a filled device, its weights from a folder. While `full` is set no path can be
/// made, as if its packed weights found no room.
class FilledServer {
 public:
  FilledServer() : folder_(std::filesystem::path(testing::TempDir()) / "filled_server") {
    std::filesystem::remove_all(folder_);
    weights::SynthOptions synth;
    synth.format = {weights::WeightFormat::kF32, weights::WeightFormat::kF32};
    weights::write_synthetic(folder_, weights::tiny_config(), synth);
    use.free_bytes = kRoom + kKeptFree;
    RunnerConfig runner{.num_slots = 2,
                        .max_step_tokens = 128,
                        .cache_bytes = bytes_of_pages(2),
                        .fill_device = true,
                        .spare_bytes = kKeptFree,
                        .paint_pages = true,
                        .weights_folder = folder_.string()};
    runner.decode_path = [this](const DecodePathContext& context) {
      if (full) {
        throw Error("no room on the device");
      }
      return std::make_unique<ForgetfulPath>(context, 3000, use, /*prompts=*/true);
    };
    auto executor = std::make_unique<ModelExecutor>(
        model::Model::load(folder_, fixed_order_forward(0, false)), runner, "tiny");
    executor_ = executor.get();
    engine_.emplace(engine::EngineConfig(),
                    std::move(executor),
                    text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
                    metrics_);
    engine_->start();
  }
  ~FilledServer() {
    engine_->stop();
    std::filesystem::remove_all(folder_);
  }

  engine::Engine& engine() { return *engine_; }
  std::string folder() const { return folder_.string(); }
  std::shared_ptr<engine::CollectingSink> submit() {
    engine::GenerationRequest request;
    request.id = std::to_string(next_++);
    request.prompt = some_ids(300, 4);
    request.max_new_tokens = 20;
    request.ignore_eos = true;
    request.sampling.temperature = 0.0F;
    auto sink = std::make_shared<engine::CollectingSink>();
    const Status status = engine_->submit(std::move(request), sink);
    EXPECT_TRUE(status.ok()) << status.message;
    return sink;
  }
  std::vector<int32_t> answer() {
    const auto sink = submit();
    sink->wait();
    return sink->ids();
  }
  /// While no request runs.
  int64_t rows_of_path() const { return executor_->rows_of_decode_path(); }
  int32_t pages() const { return executor_->capacity().cache->sizes.full_pages; }

  PathUse use;
  std::atomic<bool> full{false};

 private:
  std::filesystem::path folder_;
  MetricRegistry metrics_;
  const ModelExecutor* executor_ = nullptr;
  std::optional<engine::Engine> engine_;
  int next_ = 0;
};

TEST(FilledDeviceTest, WeightsThatFindNoRoomAreAnErrorAndTheOldOnesServe) {
  FilledServer server;
  const std::vector<int32_t> expected = server.answer();
  ASSERT_EQ(expected.size(), 20U);
  server.full = true;
  const Status refused = server.engine().update_weights({.folder = server.folder()});
  EXPECT_EQ(refused.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message, "no room on the device");
  EXPECT_TRUE(server.engine().healthy());
  const int64_t rows = server.rows_of_path();
  EXPECT_EQ(server.answer(), expected);
  EXPECT_GT(server.rows_of_path(), rows);
  server.full = false;
  EXPECT_TRUE(server.engine().update_weights({.folder = server.folder()}).ok());
  EXPECT_EQ(server.answer(), expected);
}

TEST(FilledDeviceTest, ACacheThatComesBackBeforeTheWeightsFillsTheDeviceBehindThem) {
  FilledServer server;
  const std::vector<int32_t> expected = server.answer();
  const int32_t pages = server.pages();
  for (const bool cache_first : {true, false}) {
    const int64_t changes = server.use.pool_changes;
    ASSERT_TRUE(server.engine().release_memory({.cache = true, .weights = true}).ok());
    const auto waiting = server.submit();
    ASSERT_TRUE(
        server.engine().resume_memory({.cache = cache_first, .weights = !cache_first}).ok());
    EXPECT_EQ(server.use.pool_changes, changes) << "not before the other part is there";
    // The last part finds no room: an error that says so, as often as it is tried.
    server.full = true;
    for (int attempt = 0; attempt < 2; ++attempt) {
      const Status status = server.engine().resume_memory({.cache = true, .weights = true});
      EXPECT_EQ(status.message, "no room on the device");
      EXPECT_TRUE(server.engine().stats().released.any());
      EXPECT_TRUE(server.engine().healthy());
      EXPECT_FALSE(waiting->ended());
    }
    server.full = false;
    const Status status = server.engine().resume_memory({.cache = true, .weights = true});
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(server.use.pool_changes, changes + 1);
    waiting->wait();
    EXPECT_EQ(waiting->ids(), expected);
    EXPECT_EQ(server.pages(), pages);
    const int64_t rows = server.rows_of_path();
    EXPECT_EQ(server.answer(), expected);
    EXPECT_GT(server.rows_of_path(), rows);
  }
}

}  // namespace
}  // namespace baleen::runner
