#include "runner/score.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "model/hash_fill.h"
#include "model/whole_model.h"
#include "weights/safetensors.h"

namespace baleen::runner {
namespace {

model::Model toy_model(model::ComputeType compute) {
  const auto dtype = compute == model::ComputeType::kFloat64 ? at::kDouble : at::kFloat;
  return model::Model(
      model::make_hash_filled(model::golden_toy_config(), {}, at::TensorOptions(dtype)),
      {.compute = compute, .numerics = "plain", .max_context = 64, .with_mtp = true});
}

std::vector<int32_t> toy_ids(int32_t count) {
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < count; ++t) {
    ids.push_back((7 * t + 3) % 32);
  }
  return ids;
}

class ScoreTest : public testing::Test {
 protected:
  ScoreTest() {
    folder_ = std::filesystem::temp_directory_path() /
              ("baleen_score_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~ScoreTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }

  static std::vector<double> read(const std::filesystem::path& file, const std::string& name) {
    const auto stored = weights::SafetensorsFile::open(file);
    const weights::StoredTensor* tensor = stored.find(name);
    if (tensor == nullptr) {
      ADD_FAILURE() << "no tensor " << name;
      return {};
    }
    const auto bytes = stored.bytes(*tensor);
    std::vector<double> values(static_cast<std::size_t>(tensor->num_elements()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (tensor->dtype == weights::DType::kF64) {
        std::memcpy(&values[i], bytes.data() + i * sizeof(double), sizeof(double));
      } else {
        float value = 0.0F;
        std::memcpy(&value, bytes.data() + i * sizeof(float), sizeof(float));
        values[i] = static_cast<double>(value);
      }
    }
    return values;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(ScoreTest, GivesTheGoldenLogitsAndTheLogProbabilitiesOfTheLoss) {
  model::Model model = toy_model(model::ComputeType::kFloat64);
  write_scores(model, {toy_ids(20)}, {}, path("whole.safetensors"));
  const std::vector<double> logits = read(path("whole.safetensors"), "logits.0");
  ASSERT_EQ(logits.size(), 20U * 32U);
  EXPECT_NEAR(logits[19 * 32], 2.018911006, 1e-9);
  const std::vector<double> logprobs = read(path("whole.safetensors"), "logprobs.0");
  ASSERT_EQ(logprobs.size(), 19U);
  double sum = 0.0;
  for (const double logprob : logprobs) {
    sum += logprob;
  }
  EXPECT_NEAR(-sum / 19.0, 4.279890187, 1e-9);
  const std::vector<double> mtp = read(path("whole.safetensors"), "mtp_logits.0");
  ASSERT_EQ(mtp.size(), 19U * 32U);
  EXPECT_NEAR(mtp[18 * 32], -2.227343477, 1e-9);
}

TEST_F(ScoreTest, TheCutOfASequenceDoesNotMatter) {
  for (const auto compute : {model::ComputeType::kFloat64, model::ComputeType::kFloat32}) {
    const double tolerance = compute == model::ComputeType::kFloat64 ? 1e-10 : 1e-4;
    model::Model model = toy_model(compute);
    const std::vector<std::vector<int32_t>> sequences = {toy_ids(33), toy_ids(1), toy_ids(16)};
    write_scores(model, sequences, {}, path("whole.safetensors"));
    for (const ScoreOptions& options : {ScoreOptions{.chunk = 5},
                                        ScoreOptions{.chunk = 1},
                                        ScoreOptions{.chunk = 100},
                                        ScoreOptions{.prefill = 7}}) {
      write_scores(model, sequences, options, path("cut.safetensors"));
      for (const char* name : {"logits.0",
                               "logprobs.0",
                               "mtp_logits.0",
                               "logits.1",
                               "logprobs.1",
                               "mtp_logits.1",
                               "logits.2",
                               "logprobs.2",
                               "mtp_logits.2"}) {
        const std::vector<double> whole = read(path("whole.safetensors"), name);
        const std::vector<double> cut = read(path("cut.safetensors"), name);
        ASSERT_EQ(whole.size(), cut.size()) << name;
        for (std::size_t i = 0; i < whole.size(); ++i) {
          ASSERT_NEAR(whole[i], cut[i], tolerance) << name << " element " << i;
        }
      }
    }
  }
}

TEST_F(ScoreTest, RefusesWhatItCannotScore) {
  model::Model model = toy_model(model::ComputeType::kFloat32);
  const auto message = [&](const std::vector<std::vector<int32_t>>& sequences,
                           const ScoreOptions& options) -> std::string {
    try {
      write_scores(model, sequences, options, path("bad.safetensors"));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message({toy_ids(3), {}}, {}).find("sequence 1 is empty"), std::string::npos);
  EXPECT_NE(message({{1, 32}}, {}).find("position 1: token id 32"), std::string::npos);
  EXPECT_NE(message({{-1}}, {}).find("token id -1"), std::string::npos);
  EXPECT_NE(message({toy_ids(65)}, {}).find("has 65 tokens, the model takes 64"),
            std::string::npos);
  EXPECT_NE(message({toy_ids(3)}, {.chunk = 2, .prefill = 2}).find("exclude"), std::string::npos);
  EXPECT_NE(message({toy_ids(3)}, {.chunk = -1}).find("positive"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path("bad.safetensors")));
}

TEST(ScoreStepsTest, CutsAsAsked) {
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(score_steps(5, {}), Steps({5}));
  EXPECT_EQ(score_steps(5, {.chunk = 2}), Steps({2, 2, 1}));
  EXPECT_EQ(score_steps(4, {.chunk = 2}), Steps({2, 2}));
  EXPECT_EQ(score_steps(4, {.prefill = 2}), Steps({2, 1, 1}));
  EXPECT_EQ(score_steps(2, {.prefill = 9}), Steps({2}));
}

}  // namespace
}  // namespace baleen::runner
