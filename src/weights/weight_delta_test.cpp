// Differences between published folders: chains of them give the folders that were published.
#include "weights/weight_delta.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "weights/digest_file.h"
#include "weights/mapped_file.h"
#include "weights/safetensors_writer.h"

namespace baleen::weights {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int kVersions = 30;

class WeightDeltaTest : public testing::Test {
 protected:
  WeightDeltaTest() {
    fs::remove_all(root_);
    fs::create_directories(root_);
    for (auto& values : values_) {
      values.resize(5000);
      for (uint16_t& value : values) {
        value = static_cast<uint16_t>(random_());
      }
    }
  }

  /// Changes some bytes of some tensors: none, a few, a block, all.
  void train(int version) {
    for (std::size_t tensor = 0; tensor < values_.size(); ++tensor) {
      const int kind = (version + static_cast<int>(tensor)) % 4;
      const std::size_t count = kind == 0 ? 0 : kind == 1 ? 12 : kind == 2 ? 400 : 5000;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t place = kind == 1 ? random_() % 5000 : kind == 2 ? 77 + i : i;
        values_[tensor][place] = static_cast<uint16_t>(random_());
      }
    }
  }

  fs::path publish(int64_t version) const {
    const fs::path folder = root_ / ("v" + std::to_string(version));
    fs::create_directories(folder);
    SafetensorsWriter writer(folder / "model.safetensors",
                             {{"a.weight", DType::kBf16, {50, 100}},
                              {"b.weight", DType::kBf16, {100, 50}},
                              {"c.weight", DType::kBf16, {5000}}});
    for (std::size_t tensor = 0; tensor < values_.size(); ++tensor) {
      writer.append(std::string(1, static_cast<char>('a' + tensor)) + ".weight",
                    std::as_bytes(std::span(values_[tensor])));
    }
    writer.finish();
    std::ofstream(folder / "config.json") << "{\"version\": " << version << "}\n";
    std::ofstream(folder / "tokenizer.json") << tokenizer_;
    write_digest_file(folder, {.version = version, .contract = "c", .values = {{"a.weight", 1}}});
    return folder;
  }

  static std::string message(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "done";
  }

  fs::path root_ = fs::path(testing::TempDir()) / "weight_delta";
  std::string tokenizer_ = std::string(50'000, 't');  // the same in every version
  std::mt19937 random_{5};
  std::array<std::vector<uint16_t>, 3> values_;
};

TEST_F(WeightDeltaTest, AChainOfThirtyVersionsEqualsTheWholeFolders) {
  fs::path published = publish(0);
  fs::path own = root_ / "own0";
  fs::copy(published, own);
  int64_t sent = 0;
  int64_t whole = 0;
  for (int version = 1; version <= kVersions; ++version) {
    train(version);
    const fs::path next = publish(version);
    const fs::path delta = root_ / "step.delta";
    const DeltaReport report = write_delta(published, next, delta);
    EXPECT_EQ(report.delta_bytes, static_cast<int64_t>(fs::file_size(delta)));
    sent += report.delta_bytes;
    whole += report.full_bytes;
    const fs::path made = root_ / ("own" + std::to_string(version));
    apply_delta(own, delta, made);
    EXPECT_EQ(read_text_file(delta).find(tokenizer_), std::string::npos);
    for (const char* name :
         {"model.safetensors", "config.json", "tokenizer.json", "weights.json"}) {
      EXPECT_EQ(read_text_file(made / name), read_text_file(next / name)) << version << name;
    }
    published = next;
    own = made;
  }
  EXPECT_LT(sent, whole / 2);  // a quarter of the tensors changes throughout
}

TEST_F(WeightDeltaTest, WhatDoesNotFitIsRefusedAndLeavesNothing) {
  const fs::path v0 = publish(0);
  train(1);
  const fs::path v1 = publish(1);
  train(2);
  const fs::path v2 = publish(2);
  const fs::path delta = root_ / "v2.delta";
  write_delta(v1, v2, delta);
  EXPECT_THAT(message([&] { apply_delta(v0, delta, root_ / "x"); }),
              HasSubstr("changes version 1"));
  EXPECT_THAT(message([&] { apply_delta(v1, delta, v2); }), HasSubstr("exists already"));

  // The right number on other bytes.
  fs::copy(v0, root_ / "false1");
  fs::copy(
      v1 / "weights.json", root_ / "false1" / "weights.json", fs::copy_options::overwrite_existing);
  EXPECT_THAT(message([&] { apply_delta(root_ / "false1", delta, root_ / "x"); }),
              HasSubstr("false1: has other bytes"));

  // A file beside the shards that is taken from the version before.
  fs::copy(v1, root_ / "other1");
  std::ofstream(root_ / "other1" / "tokenizer.json") << "another";
  EXPECT_THAT(message([&] { apply_delta(root_ / "other1", delta, root_ / "x"); }),
              HasSubstr("other1: tokenizer.json is not what was published"));

  std::string bytes = read_text_file(delta);
  for (const std::size_t place :
       {std::size_t{3}, std::size_t{12}, std::size_t{60}, bytes.size() - 1}) {
    std::string damaged = bytes;
    damaged[place] = static_cast<char>(damaged[place] ^ 0x20);
    write_text_file(root_ / "bad.delta", damaged);
    EXPECT_NE(message([&] { apply_delta(v1, root_ / "bad.delta", root_ / "x"); }), "done") << place;
    EXPECT_FALSE(fs::exists(root_ / "x"));
  }
  write_text_file(root_ / "bad.delta", bytes.substr(0, bytes.size() / 2));
  EXPECT_NE(message([&] { apply_delta(v1, root_ / "bad.delta", root_ / "x"); }), "done");

  // A digest that is not that of the bytes names its tensor.
  const std::size_t at = bytes.find("\"digest\":\"", bytes.find("\"tensors\"")) + 10;
  bytes[at] = bytes[at] == '0' ? '1' : '0';
  write_text_file(root_ / "bad.delta", bytes);
  EXPECT_THAT(message([&] { apply_delta(v1, root_ / "bad.delta", root_ / "x"); }),
              HasSubstr(".weight: other bytes come out"));

  fs::remove(v2 / "weights.json");
  EXPECT_THAT(message([&] { write_delta(v1, v2, delta); }), HasSubstr("has no weights.json"));
}

}  // namespace
}  // namespace baleen::weights
