// What a running model holds behind a stream is what an export of the masters would load, and what
// the trainer's forward computes with; by any bucket size, again after a step, tables included.

#include "train/weight_sender.h"

#include <cmath>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/contract.h"
#include "model/forward.h"
#include "model/load_parameters.h"
#include "model/weight_intake.h"
#include "ops/fake_quantize.h"
#include "train/published.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {
namespace {

enum class Served : uint8_t { kFloat32, kFp8Fp4 };

Masters some_masters(Served served, uint64_t seed) {
  model::ModelParameters params = fresh_nano(nano_config({.with_mtp = true}), seed, at::kFloat);
  if (served == Served::kFp8Fp4) {
    model::set_formats(params, {ops::LinearFormat::kFp8, ops::LinearFormat::kFp4});
  }
  return plain_masters(std::move(params),
                       {.indexer = true},
                       served == Served::kFp8Fp4 ? WeightRounding::kServed : WeightRounding::kNone);
}

/// The trainer's values as another part of the program would hold them: in memory of its own.
model::ModelParameters own_copy(const model::ModelParameters& params) {
  const at::NoGradGuard no_grad;
  model::ModelParameters copy = params;
  model::for_each_parameter(
      copy, [](const model::ParameterInfo&, at::Tensor& value) { value = value.detach().clone(); });
  return copy;
}

void receive(MasterStream& stream, model::ModelParameters& params) {
  model::WeightIntake intake(params);
  intake.check(stream.manifest());
  weights::StreamCheck check(stream.manifest());
  while (const auto bucket = stream.next()) {
    check.accept(*bucket);
    for (const weights::StreamedTensor& tensor : *bucket) {
      intake.write(tensor, check.entry(tensor.name));
    }
  }
  check.finish(stream.root());
}

/// Moves every master, and integers and biases too.
void move_masters(Masters& masters) {
  const at::NoGradGuard no_grad;
  model::ModelParameters shown = masters.values();
  model::for_each_parameter(shown, [](const model::ParameterInfo& info, at::Tensor& value) {
    if (info.role == model::ParameterRole::kHashTable) {
      value.copy_(at::remainder(value + 3, 8));
    } else {
      value.mul_(1.01).add_(0.003);
    }
  });
  masters.refresh_served();
}

TEST(WeightSenderTest, AStreamGivesWhatAnExportLoadsWhateverTheBuckets) {
  for (const Served served : {Served::kFloat32, Served::kFp8Fp4}) {
    Masters masters = some_masters(served, 3);
    model::ModelParameters engine = own_copy(some_masters(served, 4).leaves());
    std::vector<const void*> addresses;
    model::for_each_parameter(engine, [&](const model::ParameterInfo&, at::Tensor& value) {
      addresses.push_back(value.const_data_ptr());
    });
    for (const int64_t bytes : {int64_t{1}, int64_t{30'000}, int64_t{1} << 40}) {
      move_masters(masters);
      EXPECT_NE(model::value_digests(engine), model::value_digests(masters.leaves()));
      MasterStream stream(masters, {.contract = "c", .version = 1, .bucket_bytes = bytes});
      receive(stream, engine);
      EXPECT_EQ(model::value_digests(engine), model::value_digests(masters.leaves())) << bytes;
      EXPECT_EQ(stream.value_digests(), model::value_digests(engine));
    }
    const auto folder = fresh_test_folder("sender");
    write_published(masters.values(),
                    folder / "model",
                    published_format(masters.values(), served == Served::kFp8Fp4));
    const model::ModelParameters loaded =
        model::load_parameters(folder / "model", at::TensorOptions(at::kFloat), true);
    EXPECT_EQ(model::value_digests(loaded), model::value_digests(engine));
    std::filesystem::remove_all(folder);
    // In place: whoever kept an address still reads the right tensor.
    std::size_t next = 0;
    model::for_each_parameter(engine, [&](const model::ParameterInfo& info, at::Tensor& value) {
      EXPECT_EQ(value.const_data_ptr(), addresses[next++]) << info.name;
    });
  }
}

TEST(WeightSenderTest, AStreamOfAnotherStorageClassIsRefusedByTensor) {
  Masters masters = some_masters(Served::kFp8Fp4, 3);
  model::ModelParameters plain = own_copy(some_masters(Served::kFloat32, 3).leaves());
  MasterStream stream(masters, {});
  const model::WeightIntake intake(plain);
  const auto complaint = [](const model::WeightIntake& to,
                            const weights::WeightManifest& manifest) {
    try {
      to.check(manifest);
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(complaint(intake, stream.manifest()),
            "layers.0.attn.wq_a.weight: is sent as fp8, the model holds plain numbers");
  model::ModelParameters engine = own_copy(masters.leaves());
  const model::WeightIntake fits(engine);
  EXPECT_EQ(complaint(fits, stream.manifest()), "");
  weights::WeightManifest torn = stream.manifest();
  std::erase_if(torn.entries, [](const weights::ManifestEntry& entry) {
    return entry.parameter.name == "layers.0.ffn.gate.tid2eid";
  });
  EXPECT_EQ(complaint(fits, torn), "layers.0.ffn.gate.tid2eid: is not sent");
  // An engine without its draft layer takes the rest.
  engine.mtp.clear();
  EXPECT_EQ(complaint(model::WeightIntake(engine), stream.manifest()), "");
}

TEST(WeightSenderTest, OnlyFiniteNumbersAreSent) {
  Masters masters = some_masters(Served::kFp8Fp4, 3);
  model::ModelParameters shown = masters.values();
  const at::NoGradGuard no_grad;
  shown.blocks[1].moe.w2.weight[3].view({-1})[17].fill_(std::nan(""));
  const auto complaint = [](const auto& make) {
    try {
      make();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(complaint([&] { MasterStream(masters, {}); }),
            "layers.1.ffn.experts.3.w2.weight: number 17 is not finite; it is not published");
  // Rounded to FP4, which has no NaN, nothing is left of it: masters are looked at, not copies.
  masters.refresh_served();
  EXPECT_EQ(complaint([&] { SharedWeights(masters.leaves(), {}); }), "");
  EXPECT_EQ(complaint([&] { check_finite(masters.values()); }).find("layers.1.ffn.experts.3"), 0U);
  shown.embed.view({-1})[70].fill_(std::numeric_limits<float>::infinity());
  masters.refresh_served();
  EXPECT_EQ(complaint([&] { SharedWeights(masters.leaves(), {}); }),
            "embed.weight: number 70 is not finite; it is not published");
}

TEST(WeightSenderTest, SamplesCoverAllTensorsAsVersionsGoBy) {
  Masters masters = some_masters(Served::kFloat32, 3);
  const auto all = SharedWeights(masters.leaves(), {.verify = WeightVerify::kFull}).value_digests();
  EXPECT_EQ(all, model::value_digests(masters.leaves()));
  ASSERT_GT(all.size(), 2U * kSampledTensors);
  EXPECT_TRUE(
      SharedWeights(masters.leaves(), {.verify = WeightVerify::kOff}).value_digests().empty());
  std::set<std::string> seen;
  for (int64_t version = 0; version < 8; ++version) {
    const auto some =
        SharedWeights(masters.leaves(), {.version = version, .verify = WeightVerify::kSample})
            .value_digests();
    EXPECT_EQ(static_cast<int64_t>(some.size()), kSampledTensors);
    for (const auto& [name, digest] : some) {
      seen.insert(name);
    }
  }
  EXPECT_EQ(seen.size(), all.size());
}

/// 2^20 numbers of every size: zeros, subnormals, the largest, and all exponents between.
at::Tensor hard_values() {
  at::Tensor values = at::empty({1024, 1024}, at::kFloat);
  float* value = values.mutable_data_ptr<float>();
  uint64_t state = 77;
  for (int64_t i = 0; i < values.numel(); ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto mantissa = 1.0F + static_cast<float>(state >> 41) * 0x1p-23F;
    // Tiles and groups of their own range, so that scales of all sizes are met.
    const int64_t tile = (i / 1024 / 128) * 8 + (i % 1024) / 128;
    const int base = static_cast<int>(tile) * 3 - 100;
    const int exponent = base - static_cast<int>((state >> 20) % 24);
    value[i] = std::ldexp((state >> 40) % 2 == 0 ? mantissa : -mantissa, exponent);
    if ((state >> 30) % 37 == 0) {
      value[i] = (state >> 31) % 2 == 0 ? 0.0F : -0.0F;
    }
  }
  for (int64_t column = 0; column < 128; ++column) {
    value[column] = std::ldexp(1.0F + static_cast<float>(column), -149);  // a group of subnormals
    value[(1024 * 130) + column] = 0.0F;
  }
  value[1024 * 1000 + 1000] = std::numeric_limits<float>::max();
  value[1024 * 1001 + 1001] = -std::numeric_limits<float>::max();
  return values;
}

TEST(WeightSenderTest, TrainerAndEngineQuantiseAlike) {
  const at::Tensor values = hard_values();
  const std::span<const float> numbers(values.const_data_ptr<float>(), 1024 * 1024);
  for (const auto& [sent, held] :
       {std::pair{weights::WeightFormat::kFp8, ops::LinearFormat::kFp8},
        std::pair{weights::WeightFormat::kFp4, ops::LinearFormat::kFp4}}) {
    const weights::EncodedParameter encoded =
        weights::encode_parameter(numbers, {1024, 1024}, sent);
    at::Tensor engine = at::empty({1024, 1024}, at::kFloat);
    weights::decode_parameter(encoded.values,
                              encoded.scales,
                              {1024, 1024},
                              sent,
                              std::span<float>(engine.mutable_data_ptr<float>(), 1024 * 1024));
    const at::Tensor trainer = ops::fake_quantize_weight(values, held);
    EXPECT_TRUE(at::equal(engine, trainer)) << static_cast<int>(sent);
    // What was served once is sent with the same numbers again.
    const weights::EncodedParameter again = weights::encode_parameter(
        std::span<const float>(trainer.const_data_ptr<float>(), 1024 * 1024), {1024, 1024}, sent);
    at::Tensor twice = at::empty({1024, 1024}, at::kFloat);
    weights::decode_parameter(again.values,
                              again.scales,
                              {1024, 1024},
                              sent,
                              std::span<float>(twice.mutable_data_ptr<float>(), 1024 * 1024));
    EXPECT_TRUE(at::equal(twice, trainer)) << static_cast<int>(sent);
  }
}

}  // namespace
}  // namespace baleen::train
