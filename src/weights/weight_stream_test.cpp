// A stream of weights is taken as a whole or not at all: tensors that are missing, damaged,
// exchanged or torn from those that they are run with are named.

#include "weights/weight_stream.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"
#include "weights/digest_file.h"
#include "weights/mapped_file.h"
#include "weights/model_presets.h"

namespace baleen::weights {
namespace {

WeightManifest tiny_manifest() {
  return weight_manifest(tiny_config(), CheckpointFormat{}, "contract", 7);
}

StreamedTensor some_tensor(const ManifestEntry& entry) {
  StreamedTensor tensor;
  tensor.name = entry.parameter.name;
  const std::vector<TensorSpec> forms = stored_forms(entry.parameter, entry.format);
  tensor.encoded.values.resize(static_cast<std::size_t>(forms[0].num_bytes()));
  for (std::size_t i = 0; i < tensor.encoded.values.size(); ++i) {
    tensor.encoded.values[i] = static_cast<std::byte>(i * 7 + tensor.name.size());
  }
  if (forms.size() > 1) {
    tensor.encoded.scales.assign(static_cast<std::size_t>(forms[1].num_bytes()), 127);
  }
  tensor.digest = tensor_digest(tensor.name,
                                {std::as_bytes(std::span(tensor.encoded.values)),
                                 std::as_bytes(std::span(tensor.encoded.scales))});
  return tensor;
}

std::vector<WeightBucket> cut(const WeightManifest& manifest, int64_t bucket_bytes) {
  std::vector<WeightBucket> buckets;
  for (std::size_t begin = 0; begin < manifest.entries.size();) {
    const std::size_t end = bucket_end(manifest, begin, bucket_bytes);
    buckets.emplace_back();
    for (; begin < end; ++begin) {
      buckets.back().push_back(some_tensor(manifest.entries[begin]));
    }
  }
  return buckets;
}

std::string root_of(const std::vector<WeightBucket>& buckets) {
  TensorDigests digests;
  for (const WeightBucket& bucket : buckets) {
    for (const StreamedTensor& tensor : bucket) {
      digests.emplace_back(tensor.name, tensor.digest);
    }
  }
  return digest_root(digests);
}

std::string complaint(const WeightManifest& manifest,
                      const std::vector<WeightBucket>& buckets,
                      const std::string& root) {
  try {
    StreamCheck check(manifest);
    for (const WeightBucket& bucket : buckets) {
      check.accept(bucket);
    }
    check.finish(root);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return {};
}

TEST(WeightStreamTest, TheManifestHasEveryTensorOnce) {
  const WeightManifest manifest = tiny_manifest();
  std::set<std::string> names;
  for (const ManifestEntry& entry : manifest.entries) {
    names.insert(entry.parameter.name);
    EXPECT_GT(entry.num_bytes, 0) << entry.parameter.name;
  }
  std::set<std::string> expected;
  for (const Parameter& parameter : parameter_inventory(tiny_config())) {
    expected.insert(parameter.name);
  }
  EXPECT_EQ(names, expected);
  EXPECT_EQ(names.size(), manifest.entries.size());
  EXPECT_TRUE(names.contains("layers.0.ffn.gate.tid2eid")) << "integers too";
  const auto group_of = [&](const std::string& name) {
    for (const ManifestEntry& entry : manifest.entries) {
      if (entry.parameter.name == name) {
        return entry.group;
      }
    }
    return -1;
  };
  EXPECT_EQ(group_of("layers.1.attn.wkv.weight"), group_of("layers.1.attn.wq_a.weight"));
  EXPECT_EQ(group_of("layers.1.attn.compressor.wkv.weight"),
            group_of("layers.1.attn.compressor.wgate.weight"));
  EXPECT_EQ(group_of("layers.1.attn.indexer.compressor.wkv.weight"),
            group_of("layers.1.attn.indexer.compressor.wgate.weight"));
  EXPECT_EQ(group_of("layers.1.ffn.experts.3.w1.weight"),
            group_of("layers.1.ffn.experts.3.w3.weight"));
  EXPECT_NE(group_of("layers.1.ffn.experts.3.w1.weight"),
            group_of("layers.1.ffn.experts.2.w1.weight"));

  WeightManifest other = manifest;
  other.version = 8;
  EXPECT_EQ(other.digest(), manifest.digest());
  other.contract = "another";
  EXPECT_NE(other.digest(), manifest.digest());
  ModelConfig clamped = tiny_config();
  clamped.swiglu_limit += 1;
  EXPECT_NE(weight_manifest(clamped, {}, "contract", 7).digest(), manifest.digest());
}

TEST(WeightStreamTest, AnyBucketSizeGivesTheSameRoot) {
  const WeightManifest manifest = tiny_manifest();
  const std::vector<WeightBucket> whole = cut(manifest, int64_t{1} << 40);
  ASSERT_EQ(whole.size(), 1U);
  for (const int64_t bytes : {0, 1, 4096, 100'000, 1'000'000}) {
    const std::vector<WeightBucket> buckets = cut(manifest, bytes);
    EXPECT_GT(buckets.size(), 1U);
    EXPECT_EQ(root_of(buckets), root_of(whole));
    EXPECT_EQ(complaint(manifest, buckets, root_of(whole)), "") << bytes;
  }
}

TEST(WeightStreamTest, WhatIsNotWholeIsNamed) {
  const WeightManifest manifest = tiny_manifest();
  const std::vector<WeightBucket> whole = cut(manifest, int64_t{1} << 40);
  const std::string root = root_of(whole);
  const auto damaged = [&](const std::function<void(WeightBucket&)>& damage) {
    std::vector<WeightBucket> buckets = whole;
    damage(buckets[0]);
    return complaint(manifest, buckets, root);
  };
  const auto place = [&](const std::string& name) {
    for (std::size_t i = 0; i < whole[0].size(); ++i) {
      if (whole[0][i].name == name) {
        return i;
      }
    }
    return whole[0].size();
  };
  const std::string first = "layers.1.ffn.experts.2.w2.weight";
  const std::string second = "layers.1.ffn.experts.3.w2.weight";
  const std::size_t at = place(first);
  ASSERT_LT(at, whole[0].size());
  EXPECT_EQ(damaged([](WeightBucket&) {}), "");
  EXPECT_EQ(damaged([&](WeightBucket& b) {
              b[at].encoded.values[5] ^= std::byte{1};
            }).find(first + ": digest"),
            0U);
  EXPECT_EQ(damaged([&](WeightBucket& b) { b[at].encoded.scales[0] ^= 1; }).find(first), 0U);
  EXPECT_EQ(damaged([&](WeightBucket& b) {
              std::swap(b[at].encoded, b[place(second)].encoded);
              std::swap(b[at].digest, b[place(second)].digest);
            }).find(first + ": digest"),
            0U)
      << "equal shapes at each other's place";
  EXPECT_EQ(damaged([&](WeightBucket& b) { b.erase(b.begin() + static_cast<std::ptrdiff_t>(at)); }),
            first + ": did not come");
  EXPECT_EQ(damaged([&](WeightBucket& b) { b.push_back(b[at]); }), first + ": came twice");
  EXPECT_EQ(damaged([&](WeightBucket& b) { b[at].encoded.values.pop_back(); }).find(first), 0U);
  EXPECT_EQ(damaged([&](WeightBucket& b) { b[at].name = "another"; }),
            "another: not announced in the manifest");
  EXPECT_EQ(complaint(manifest, whole, "00").find("root digest"), 0U);
  std::vector<WeightBucket> torn = whole;
  const std::size_t gate = place("layers.1.ffn.experts.2.w1.weight");
  torn.push_back({torn[0][gate]});
  torn[0].erase(torn[0].begin() + static_cast<std::ptrdiff_t>(gate));
  EXPECT_NE(complaint(manifest, torn, root).find("did not come in the bucket"), std::string::npos);
}

TEST(DigestFileTest, ComesBackAndIsRefusedWhenTouched) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "baleen_digest_file";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_FALSE(read_digest_file(folder).has_value());
  const DigestFile written{.version = 12,
                           .contract = "abc",
                           .values = {{"embed.weight", 0xFEDCBA9876543210U}, {"b", 1}}};
  write_digest_file(folder, written);
  const auto found = read_digest_file(folder);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->version, 12);
  EXPECT_EQ(found->contract, "abc");
  EXPECT_EQ(found->values, written.values);
  std::string text = read_text_file(folder / kDigestFileName);
  text[text.find("fedc")] = '0';
  std::ofstream(folder / kDigestFileName, std::ios::binary) << text;
  try {
    read_digest_file(folder);
    FAIL() << "the root does not fit";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("weights.json: root"), std::string::npos)
        << error.what();
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace baleen::weights
