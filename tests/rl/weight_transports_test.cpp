// Every way from trainer to engine leaves the same bytes there: shared storage, streams of any
// bucket size, a folder, the server's endpoint. Again after a second step, and an engine that got
// them answers as one that was loaded with an export.

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <boost/json.hpp>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "model/contract.h"
#include "model/weight_intake.h"
#include "rl/nano_tokenizer.h"
#include "runner/model_executor.h"
#include "server/operations/weight_control.h"
#include "train/nano_model.h"
#include "train/weight_sender.h"

namespace baleen {
namespace {

class Served {
 public:
  Served(model::ModelParameters params, const std::string& numerics) {
    model::ForwardConfig forward;
    forward.numerics = numerics;
    forward.max_context = 256;
    auto executor = std::make_unique<runner::ModelExecutor>(
        model::Model(std::move(params), forward),
        runner::RunnerConfig{.num_slots = 4, .max_step_tokens = 256},
        "nano");
    executor_ = executor.get();
    engine::EngineConfig config;
    config.weight_version = "0";
    engine_ = std::make_unique<engine::Engine>(
        config, std::move(executor), rl::nano_tokenizer(), metrics_);
    engine_->start();
  }
  ~Served() { engine_->stop(); }

  engine::Engine& engine() { return *engine_; }
  weights::TensorDigests digests() const { return executor_->weight_digests(); }

  std::vector<std::pair<int32_t, float>> answer(const std::vector<int32_t>& prompt) {
    engine::GenerationRequest request;
    request.id = std::to_string(next_++);
    request.prompt = prompt;
    request.max_new_tokens = 20;
    request.ignore_eos = true;
    request.want_logprobs = true;
    request.sampling.seed = 5;
    auto sink = std::make_shared<engine::CollectingSink>();
    EXPECT_TRUE(engine_->submit(std::move(request), sink).ok());
    sink->wait();
    std::vector<std::pair<int32_t, float>> out;
    for (const engine::GeneratedToken& token : sink->tokens()) {
      out.emplace_back(token.id, token.logprob);
    }
    return out;
  }

 private:
  MetricRegistry metrics_;
  runner::ModelExecutor* executor_ = nullptr;  // of the engine
  std::unique_ptr<engine::Engine> engine_;
  int next_ = 0;
};

model::ModelParameters shown(const train::Masters& masters, bool copied) {
  model::ModelParameters params = masters.leaves();
  model::for_each_parameter(params, [&](const model::ParameterInfo&, at::Tensor& value) {
    value = copied ? value.detach().clone() : value.detach();
  });
  return params;
}

void take_step(train::Masters& masters) {
  const at::NoGradGuard no_grad;
  model::ModelParameters params = masters.values();
  model::for_each_parameter(params, [](const model::ParameterInfo& info, at::Tensor& value) {
    if (info.name.find(".indexer.") != std::string::npos) {
      return;  // frozen
    }
    if (info.role == model::ParameterRole::kHashTable) {
      value.copy_(at::remainder(value + 1, 8));
    } else {
      value.mul_(0.99).add_(0.002);
    }
  });
  masters.refresh_served();
}

class TransportsTest : public testing::TestWithParam<bool> {
 protected:
  TransportsTest() {
    model::ModelParameters params = train::fresh_nano(train::nano_config(), 7, at::kFloat);
    if (quantised()) {
      model::set_formats(params, {ops::LinearFormat::kFp8, ops::LinearFormat::kFp4});
      params.config.quantization_config.emplace();  // as the export says
      params.config.expert_dtype = "fp4";
    }
    const train::FreezeRules rules({.indexer = true}, params);
    masters_ = std::make_unique<train::Masters>(
        std::move(params),
        rules,
        quantised() ? train::WeightRounding::kServed : train::WeightRounding::kNone);
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("baleen_transports_" + std::to_string(::getpid()) + (quantised() ? "q" : "f"));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~TransportsTest() override { std::filesystem::remove_all(folder_); }

  bool quantised() const { return GetParam(); }
  std::string numerics() const { return quantised() ? "reference+invariant" : "plain+invariant"; }
  train::SendOptions options(int64_t version, int64_t bucket_bytes = 1 << 14) const {
    return {
        .contract = model::contract_digest(masters_->leaves(), ops::Numerics::by_name(numerics())),
        .version = version,
        .bucket_bytes = bucket_bytes};
  }
  void publish(const std::filesystem::path& folder, const train::SendOptions& options) const {
    train::publish_folder(train::published_weights(*masters_), {}, folder, options);
  }

  std::unique_ptr<train::Masters> masters_;
  std::filesystem::path folder_;
};

TEST_P(TransportsTest, AllLeaveTheSameBytes) {
  Served shared(shown(*masters_, false), numerics());
  Served small(shown(*masters_, true), numerics());
  Served large(shown(*masters_, true), numerics());
  Served disk(shown(*masters_, true), numerics());
  Served endpoint(shown(*masters_, true), numerics());
  const std::vector<int32_t> prompt = {3, 9, 12, 8, 17, 10, 11, 4, 9, 9, 8, 14, 15};
  auto before = shared.answer(prompt);
  for (int64_t version = 1; version <= 2; ++version) {
    take_step(*masters_);
    const std::string name = std::to_string(version);
    const std::string path = (folder_ / name).string();
    const auto must = [](const Status& status) { ASSERT_TRUE(status.ok()) << status.message; };
    must(shared.engine().update_weights(
        {.source = std::make_shared<train::SharedWeights>(masters_->leaves(), options(version)),
         .version = name}));
    must(small.engine().update_weights(
        {.source = std::make_shared<train::MasterStream>(*masters_, options(version, 1)),
         .version = name}));
    must(large.engine().update_weights(
        {.source = std::make_shared<train::MasterStream>(*masters_, options(version, 1 << 30)),
         .version = name}));
    publish(path, options(version));
    must(disk.engine().update_weights({.folder = path, .version = name}));
    const auto told = server::update_weights_from_disk(
        boost::json::object{{"model_path", path}, {"weight_version", name}}, endpoint.engine());
    ASSERT_TRUE(told.ok()) << told.status().message;

    const weights::TensorDigests expected = model::value_digests(masters_->leaves());
    const auto answer = shared.answer(prompt);
    EXPECT_NE(answer, before) << "the step changed something";
    before = answer;
    for (Served* served : {&shared, &small, &large, &disk, &endpoint}) {
      EXPECT_EQ(served->digests(), expected);
      EXPECT_EQ(served->answer(prompt), answer);
      EXPECT_EQ(*served->engine().stats().weight_version, name);
    }
  }
}

TEST_P(TransportsTest, AnEngineThatKeptOldStorageIsFound) {
  // It was made from a copy, but is told that it shares.
  Served apart(shown(*masters_, true), numerics());
  const Status first = apart.engine().update_weights(
      {.source = std::make_shared<train::SharedWeights>(masters_->leaves(), options(1))});
  EXPECT_TRUE(first.ok()) << "still equal: " << first.message;
  take_step(*masters_);
  const Status second = apart.engine().update_weights(
      {.source = std::make_shared<train::SharedWeights>(masters_->leaves(), options(2))});
  EXPECT_EQ(second.code, StatusCode::kUnavailable);
  EXPECT_NE(second.message.find("embed.weight"), std::string::npos) << second.message;
  EXPECT_FALSE(apart.engine().healthy());
  const Status healed = apart.engine().update_weights(
      {.source = std::make_shared<train::MasterStream>(*masters_, options(2))});
  EXPECT_TRUE(healed.ok()) << healed.message;
  EXPECT_TRUE(apart.engine().healthy());
}

TEST_P(TransportsTest, AFolderWhoseBytesChangedIsRefusedAndTheOldWeightsStay) {
  Served served(shown(*masters_, true), numerics());
  const weights::TensorDigests before = served.digests();
  take_step(*masters_);
  const std::filesystem::path path = folder_ / "v1";
  publish(path, options(1));
  EXPECT_THROW(publish(path, options(1)), Error);
  // One bit of the last tensor's last byte.
  const std::filesystem::path file = path / "model.safetensors";
  std::FILE* stream = std::fopen(file.c_str(), "r+b");
  ASSERT_NE(stream, nullptr);
  std::fseek(stream, -1, SEEK_END);
  const int byte = std::fgetc(stream);
  std::fseek(stream, -1, SEEK_END);
  std::fputc(byte ^ 1, stream);
  std::fclose(stream);
  const Status status = served.engine().update_weights({.folder = path.string()});
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_NE(status.message.find("has other values than weights.json says"), std::string::npos)
      << status.message;
  EXPECT_TRUE(served.engine().healthy());
  EXPECT_EQ(served.digests(), before);

  // A folder that is to be computed otherwise.
  train::SendOptions other = options(2);
  other.contract = "another";
  publish(folder_ / "v2", other);
  const Status refused = served.engine().update_weights({.folder = (folder_ / "v2").string()});
  EXPECT_NE(refused.message.find("by contract another"), std::string::npos) << refused.message;
  EXPECT_EQ(served.digests(), before);
}

INSTANTIATE_TEST_SUITE_P(Formats, TransportsTest, testing::Values(false, true));

}  // namespace
}  // namespace baleen
