// Weights that come from memory take the place of the old ones while an engine runs: answers are
// those of an engine that began with them. A stream that breaks off, or whose bytes are not those
// that were sent, leaves an engine that says so and serves nothing until an update succeeds.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "model/parameters.h"
#include "model/weight_intake.h"
#include "runner/model_executor.h"
#include "runner/some_ids_for_tests.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"
#include "weights/model_presets.h"
#include "weights/synth.h"
#include "weights/weight_stream.h"

namespace baleen::runner {
namespace {

using engine::CollectingSink;
using engine::Engine;

constexpr std::chrono::seconds kSourcePatience{60};

/// The bytes of a checkpoint folder, tensor group by tensor group.
class FolderStream final : public weights::WeightSource {
 public:
  using Spoil = std::function<void(std::size_t bucket, weights::WeightBucket&)>;

  FolderStream(const std::string& folder, std::string contract, int64_t bucket_bytes = 1 << 16)
      : checkpoint_(weights::Checkpoint::open(folder)), bucket_bytes_(bucket_bytes) {
    const weights::WeightFormat matrices = checkpoint_.format("layers.0.attn.wq_a.weight");
    manifest_ =
        weights::weight_manifest(checkpoint_.config(),
                                 {.matrices = matrices, .experts = checkpoint_.expert_format()},
                                 contract,
                                 1);
  }
  void spoil(Spoil spoil) { spoil_ = std::move(spoil); }

  const weights::WeightManifest& manifest() const override { return manifest_; }
  std::optional<weights::WeightBucket> next() override {
    if (next_ == manifest_.entries.size()) {
      return std::nullopt;
    }
    weights::WeightBucket bucket;
    const std::size_t end = weights::bucket_end(manifest_, next_, bucket_bytes_);
    for (; next_ < end; ++next_) {
      const std::string& name = manifest_.entries[next_].parameter.name;
      const weights::StoredParameter& stored = checkpoint_.stored(name);
      weights::StreamedTensor tensor;
      tensor.name = name;
      tensor.encoded.values.assign(stored.values.begin(), stored.values.end());
      tensor.encoded.scales.assign(stored.scales.begin(), stored.scales.end());
      tensor.digest =
          weights::tensor_digest(name, {stored.values, std::as_bytes(std::span(stored.scales))});
      digests_.emplace_back(name, tensor.digest);
      bucket.push_back(std::move(tensor));
    }
    if (spoil_) {
      spoil_(num_buckets_, bucket);
    }
    ++num_buckets_;
    return bucket;
  }
  std::string root() const override { return weights::digest_root(digests_); }
  weights::TensorDigests value_digests() const override { return told_; }
  void tell(weights::TensorDigests digests) { told_ = std::move(digests); }

 private:
  weights::Checkpoint checkpoint_;
  weights::WeightManifest manifest_;
  int64_t bucket_bytes_;
  Spoil spoil_;
  std::size_t next_ = 0;
  std::size_t num_buckets_ = 0;
  weights::TensorDigests digests_;
  weights::TensorDigests told_;
};

class WeightSourceTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = info->name();
    std::replace(name.begin(), name.end(), '/', '_');
    top_ = std::filesystem::path(testing::TempDir()) / ("WeightSourceTest." + name);
    std::filesystem::remove_all(top_);
    std::filesystem::create_directories(top_);
    old_ = write("old", 1);
    new_ = write("new", 2);
    model::ForwardConfig forward;
    forward.numerics = numerics();
    forward.max_context = 1200;
    forward.record_choices = true;
    model::Model model = model::Model::load(old_, forward);
    engine::EngineConfig config;
    config.weight_version = "0";
    auto executor = std::make_unique<ModelExecutor>(std::move(model),
                                                    RunnerConfig{.num_slots = 4,
                                                                 .max_step_tokens = 256,
                                                                 .cache_bytes = 24 << 20,
                                                                 .paint_pages = true,
                                                                 .weights_folder = old_},
                                                    "tiny");
    engine_ =
        std::make_unique<Engine>(config,
                                 std::move(executor),
                                 text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
                                 metrics_);
    engine_->start();
  }
  void TearDown() override {
    engine_->stop();
    engine_.reset();
    std::filesystem::remove_all(top_);
  }

  bool quantised() const { return GetParam(); }
  std::string numerics() const { return quantised() ? "reference+invariant" : "plain+invariant"; }
  std::string write(const std::string& name, uint64_t seed) {
    weights::SynthOptions options;
    if (!quantised()) {
      options.format = {weights::WeightFormat::kF32, weights::WeightFormat::kF32};
    }
    options.seed = seed;
    weights::write_synthetic(top_ / name, weights::tiny_config(), options);
    return (top_ / name).string();
  }
  std::string contract() const { return engine_->executor_info().contract; }
  std::shared_ptr<FolderStream> stream(const std::string& folder, int64_t bucket_bytes = 1 << 16) {
    return std::make_shared<FolderStream>(folder, contract(), bucket_bytes);
  }
  static std::shared_ptr<CollectingSink> submit(Engine& engine,
                                                std::vector<int32_t> prompt,
                                                int32_t max_new,
                                                Status* refused = nullptr) {
    static int next = 0;
    engine::GenerationRequest request;
    request.id = std::to_string(next++);
    request.prompt = std::move(prompt);
    request.max_new_tokens = max_new;
    request.ignore_eos = true;
    request.want_logprobs = true;
    request.sampling.temperature = 0;
    auto sink = std::make_shared<CollectingSink>();
    const Status status = engine.submit(std::move(request), sink);
    if (refused != nullptr) {
      *refused = status;
    } else {
      EXPECT_TRUE(status.ok()) << status.message;
    }
    return sink;
  }
  struct Answer {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
    friend bool operator==(const Answer&, const Answer&) = default;
  };
  static Answer answer(Engine& engine, const std::vector<int32_t>& prompt, int32_t max_new) {
    const auto sink = submit(engine, prompt, max_new);
    EXPECT_TRUE(sink->wait_for(kSourcePatience));
    Answer out{.ids = sink->ids(), .logprobs = {}};
    for (const engine::GeneratedToken& token : sink->tokens()) {
      out.logprobs.push_back(token.logprob);
    }
    return out;
  }
  /// Of an engine that never had other weights.
  Answer fresh(const std::string& folder, const std::vector<int32_t>& prompt, int32_t max_new) {
    model::ForwardConfig forward;
    forward.numerics = numerics();
    forward.max_context = 1200;
    MetricRegistry metrics;
    Engine engine(
        {},
        std::make_unique<ModelExecutor>(model::Model::load(folder, forward),
                                        RunnerConfig{.num_slots = 1, .max_step_tokens = 256},
                                        "tiny"),
        text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json"),
        metrics);
    engine.start();
    Answer out = answer(engine, prompt, max_new);
    engine.stop();
    return out;
  }

  std::filesystem::path top_;
  std::string old_;
  std::string new_;
  MetricRegistry metrics_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(WeightSourceTest, AnswersAreThoseOfAFreshLoadAfterEveryUpdate) {
  const std::vector<int32_t> prompt = some_ids(300, 3);
  const Answer of_old = fresh(old_, prompt, 8);
  const Answer of_new = fresh(new_, prompt, 8);
  ASSERT_NE(of_old, of_new);
  EXPECT_EQ(answer(*engine_, prompt, 8), of_old);
  for (const int64_t bucket_bytes : {int64_t{1}, int64_t{100'000}, int64_t{1} << 40}) {
    const Status there =
        engine_->update_weights({.source = stream(new_, bucket_bytes), .version = "1"});
    ASSERT_TRUE(there.ok()) << there.message;
    EXPECT_EQ(answer(*engine_, prompt, 8), of_new);
    const auto again = submit(*engine_, prompt, 1);
    ASSERT_TRUE(again->wait_for(kSourcePatience));
    EXPECT_GT(again->finish().cached_tokens, 0) << "its own rows";
    EXPECT_EQ(*again->finish().weight_version, "1");
    const Status back = engine_->update_weights({.source = stream(old_), .version = "2"});
    ASSERT_TRUE(back.ok()) << back.message;
    const auto first = submit(*engine_, prompt, 1);
    ASSERT_TRUE(first->wait_for(kSourcePatience));
    EXPECT_EQ(first->finish().cached_tokens, 0) << "nothing of the other weights";
    EXPECT_EQ(answer(*engine_, prompt, 8), of_old);
  }
}

TEST_P(WeightSourceTest, AStreamThatBreaksOffLeavesAnEngineThatServesNothing) {
  const std::vector<int32_t> prompt = some_ids(60, 5);
  const auto running = submit(*engine_, prompt, 400);
  ASSERT_TRUE(running->wait_for_tokens(4, kSourcePatience));
  const auto broken = stream(new_);
  broken->spoil([](std::size_t bucket, weights::WeightBucket&) {
    if (bucket == 3) {
      throw Error("the sender is gone");
    }
  });
  const Status status = engine_->update_weights({.source = broken, .version = "1"});
  EXPECT_EQ(status.code, StatusCode::kUnavailable);
  EXPECT_EQ(status.message, "the sender is gone");
  EXPECT_FALSE(engine_->healthy());
  EXPECT_NE(engine_->health_message().find("the sender is gone"), std::string::npos);
  EXPECT_EQ(*engine_->stats().weight_version, "0") << "never the new one's";
  Status refused;
  submit(*engine_, prompt, 4, &refused);
  EXPECT_EQ(refused.code, StatusCode::kUnavailable);
  EXPECT_EQ(engine_->resume().code, StatusCode::kInvalidArgument);
  const size_t num_told = running->ids().size();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(running->ids().size(), num_told) << "no token of mixed weights";
  // Whole weights bring it back, and the request goes on with them.
  const Status whole = engine_->update_weights({.source = stream(new_), .version = "2"});
  ASSERT_TRUE(whole.ok()) << whole.message;
  EXPECT_TRUE(engine_->healthy());
  ASSERT_TRUE(running->wait_for(kSourcePatience));
  const std::vector<int32_t> all = running->ids();
  ASSERT_EQ(all.size(), 400U);
  std::vector<int32_t> history = prompt;
  history.insert(history.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(num_told));
  EXPECT_EQ(std::vector<int32_t>(all.begin() + static_cast<std::ptrdiff_t>(num_told), all.end()),
            fresh(new_, history, 400 - static_cast<int32_t>(num_told)).ids);
  EXPECT_EQ(answer(*engine_, prompt, 8), fresh(new_, prompt, 8));
}

TEST_P(WeightSourceTest, BytesThatChangedOnTheirWayAreNamedAndAFolderHeals) {
  const std::vector<int32_t> prompt = some_ids(60, 7);
  const auto spoiled = stream(new_, int64_t{1} << 40);
  spoiled->spoil([](std::size_t, weights::WeightBucket& bucket) {
    for (weights::StreamedTensor& tensor : bucket) {
      if (tensor.name == "layers.2.ffn.experts.1.w2.weight") {
        tensor.encoded.values[9] ^= std::byte{4};
      }
    }
  });
  Status status = engine_->update_weights({.source = spoiled});
  EXPECT_EQ(status.message.find("layers.2.ffn.experts.1.w2.weight: digest"), 0U) << status.message;
  EXPECT_TRUE(engine_->healthy()) << "nothing was written yet: the whole bucket is checked first";
  EXPECT_EQ(answer(*engine_, prompt, 4), fresh(old_, prompt, 4));

  // Written, but not what the sender has.
  const auto lying = stream(new_);
  lying->tell({{"layers.1.attn.wkv.weight", 1}});
  status = engine_->update_weights({.source = lying});
  EXPECT_EQ(status.code, StatusCode::kUnavailable);
  EXPECT_EQ(status.message,
            "layers.1.attn.wkv.weight: the values held differ from those of the sender");
  EXPECT_FALSE(engine_->healthy());
  status = engine_->update_weights({.folder = new_});
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_TRUE(engine_->healthy());
  EXPECT_EQ(answer(*engine_, prompt, 4), fresh(new_, prompt, 4));
}

TEST_P(WeightSourceTest, AnotherContractIsRefusedBeforeAnythingIsWritten) {
  const std::vector<int32_t> prompt = some_ids(60, 9);
  const auto other = std::make_shared<FolderStream>(new_, "0123");
  const Status status = engine_->update_weights({.source = other});
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_NE(status.message.find("by contract 0123, this engine by " + contract()),
            std::string::npos)
      << status.message;
  EXPECT_TRUE(engine_->healthy());
  EXPECT_EQ(answer(*engine_, prompt, 4), fresh(old_, prompt, 4));
  // The same folder under other numerics has another contract.
  model::ForwardConfig forward;
  forward.numerics = quantised() ? "reference" : "plain";
  EXPECT_NE(model::Model::load(old_, forward).contract(), contract());
  forward.numerics = numerics();
  EXPECT_EQ(model::Model::load(new_, forward).contract(), contract());
}

TEST_P(WeightSourceTest, UpdatesUnderLoadLoseNoTokenAndNameEachOnesWeights) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(submit(*engine_, some_ids(20 + 5 * i, 11 + i), 120));
  }
  int version = 0;
  for (const bool flush : {true, false, true, false}) {
    ASSERT_TRUE(
        sinks[0]->wait_for_tokens(static_cast<size_t>(10 * (version + 1)), kSourcePatience));
    const Status status = engine_->update_weights({.source = stream(version % 2 == 0 ? new_ : old_),
                                                   .version = std::to_string(version + 1),
                                                   .flush_cache = flush});
    ASSERT_TRUE(status.ok()) << status.message;
    ++version;
  }
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait_for(kSourcePatience));
    EXPECT_EQ(sink->ids().size(), 120U);
    const std::vector<std::string> versions = sink->weight_versions();
    ASSERT_EQ(versions.size(), 120U);
    EXPECT_TRUE(std::is_sorted(versions.begin(), versions.end()));
    EXPECT_EQ(versions.back(), "4");
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, WeightSourceTest, testing::Values(false, true));

}  // namespace
}  // namespace baleen::runner
