// What goes through messages comes out as it was, and no flipped bit or cut message does; a fed
// stream ends, breaks off and closes for both sides.

#include "weights/weight_frames.h"

#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "weights/fed_stream.h"
#include "weights/model_presets.h"

namespace baleen::weights {
namespace {

using std::chrono::milliseconds;

WeightManifest framed_manifest() {
  return weight_manifest(tiny_config(), CheckpointFormat{}, "contract", 7);
}

WeightBucket framed_bucket() {
  WeightBucket bucket;
  for (const char* name : {"one", "another"}) {
    StreamedTensor& tensor = bucket.emplace_back();
    tensor.name = name;
    tensor.digest = 0xFEDCBA9876543210ULL + tensor.name.size();
    for (int i = 0; i < 300; ++i) {
      tensor.encoded.values.push_back(static_cast<std::byte>(i));
    }
    tensor.encoded.scales = {0, 127, 255};
  }
  bucket[1].encoded.scales.clear();
  return bucket;
}

void expect_equal(const WeightBucket& found, const WeightBucket& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, expected[i].name);
    EXPECT_EQ(found[i].digest, expected[i].digest);
    EXPECT_EQ(found[i].encoded.values, expected[i].encoded.values);
    EXPECT_EQ(found[i].encoded.scales, expected[i].encoded.scales);
  }
}

template <class Call>
std::string complaint_of(const Call& call) {
  try {
    call();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return {};
}

TEST(WeightFramesTest, AManifestComesOutAsItWentIn) {
  const WeightManifest sent = framed_manifest();
  const WeightManifest found = read_manifest_message(manifest_message(sent));
  EXPECT_EQ(found.version, 7);
  EXPECT_EQ(found.contract, sent.contract);
  EXPECT_EQ(found.config, sent.config);
  EXPECT_EQ(found.digest(), sent.digest());
  ASSERT_EQ(found.entries.size(), sent.entries.size());
  for (std::size_t i = 0; i < sent.entries.size(); ++i) {
    EXPECT_EQ(found.entries[i].num_bytes, sent.entries[i].num_bytes) << i;
    EXPECT_EQ(found.entries[i].parameter.kind, sent.entries[i].parameter.kind) << i;
  }
}

TEST(WeightFramesTest, FaultsOfAManifestAreNamed) {
  const auto broken = [](const std::string& text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    std::string changed = text;
    changed.replace(at, from.size(), to);
    return complaint_of([&] { read_manifest_message(changed); });
  };
  const std::string text = manifest_message(framed_manifest());
  EXPECT_NE(broken(text, "\"version\":7", "\"version\":-1").find("version"), std::string::npos);
  EXPECT_NE(broken(text, "\"contract\":", "\"other\":").find("contract: missing"),
            std::string::npos);
  EXPECT_NE(broken(text, "\"format\":\"fp8\"", "\"format\":\"fp7\"").find("fp7"),
            std::string::npos);
  EXPECT_NE(broken(text, "\"format\":\"fp8\"", "\"format\":\"bf16\"").find("digest"),
            std::string::npos);
  EXPECT_NE(broken(text, "\"shape\":[", "\"shape\":[-").find("shape"), std::string::npos);
  EXPECT_NE(broken(text, "\"shape\":[", "\"shape\":[4611686018427387904,").find("shape"),
            std::string::npos);
  EXPECT_NE(complaint_of([&] { read_manifest_message("[]"); }), "");
  EXPECT_NE(complaint_of([&] { read_manifest_message(text.substr(0, text.size() / 2)); }), "");
}

TEST(WeightFramesTest, ABucketComesOutAsItWentInAndNoBitMayChange) {
  const WeightBucket sent = framed_bucket();
  const std::string bytes = bucket_message(99, sent);
  const BucketMessage found = read_bucket_message(bytes);
  EXPECT_EQ(found.update, 99U);
  expect_equal(found.tensors, sent);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    EXPECT_NE(complaint_of([&] { read_bucket_message(changed); }), "") << i;
    EXPECT_NE(complaint_of([&] { read_bucket_message(bytes.substr(0, i)); }), "") << i;
  }
  EXPECT_NE(complaint_of([&] { read_bucket_message(bytes + "x"); }), "");
}

TEST(WeightFramesTest, TheEndComesOutAsItWentIn) {
  const EndMessage sent{
      .update = 3, .root = "0123", .value_digests = {{"a", 0}, {"b", 0xFFFFFFFFFFFFFFFFULL}}};
  const EndMessage found = read_end_message(end_message(sent));
  EXPECT_EQ(found.update, 3U);
  EXPECT_EQ(found.root, "0123");
  EXPECT_EQ(found.value_digests, sent.value_digests);
  EXPECT_NE(complaint_of([] {
              read_end_message(R"({"update": 1, "root": "", "value_digests": [["a", "xy"]]})");
            }),
            "");
}

TEST(FedStreamTest, GivesWhatIsFedAndWaitsForTheTaker) {
  FedStream stream(framed_manifest(), milliseconds(20'000));
  std::jthread feeder([&] {
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(stream.feed(framed_bucket()));
    }
    stream.finish("root", {{"a", 1}});
  });
  int taken = 0;
  while (const auto bucket = stream.next()) {
    expect_equal(*bucket, framed_bucket());
    ++taken;
  }
  EXPECT_EQ(taken, 5);
  EXPECT_EQ(stream.root(), "root");
  EXPECT_EQ(stream.value_digests(), (TensorDigests{{"a", 1}}));
}

TEST(FedStreamTest, SilenceAndABreakAreToldToTheTakerAClosedStreamToTheFeeder) {
  FedStream silent(framed_manifest(), milliseconds(30));
  EXPECT_NE(complaint_of([&] { silent.next(); }).find("nothing came for 30 ms"), std::string::npos);
  FedStream broken(framed_manifest(), milliseconds(20'000));
  std::jthread breaker([&] { broken.break_off("another update began"); });
  EXPECT_NE(complaint_of([&] { broken.next(); }).find("another update began"), std::string::npos);
  FedStream closed(framed_manifest(), milliseconds(20'000));
  EXPECT_TRUE(closed.feed({}));
  EXPECT_TRUE(closed.feed({}));
  std::jthread closer([&] { closed.close(); });
  EXPECT_FALSE(closed.feed({}));  // two lie there; it would wait for ever
}

}  // namespace
}  // namespace baleen::weights
