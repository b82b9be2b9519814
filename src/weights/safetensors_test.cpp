#include "weights/safetensors.h"

#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "weights/safetensors_writer.h"

namespace baleen::weights {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& content) {
    const fs::path path = folder_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  fs::path write_with_header(const std::string& header, std::size_t data_bytes) {
    const uint64_t length = header.size();
    std::string content(8, '\0');
    std::memcpy(content.data(), &length, 8);
    return write("x.safetensors", content + header + std::string(data_bytes, '\0'));
  }
  std::string error_of(const fs::path& path) {
    try {
      SafetensorsFile::open(path);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "no error";
  }
  fs::path folder_;
};

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

TEST_F(SafetensorsTest, BadFilesOfTheCaseAreRefusedByName) {
  std::ifstream stream("tests/cases/H19_bad_checkpoints.json");
  std::ostringstream text;
  text << stream.rdbuf();
  const std::map<std::string, std::vector<std::string>> reasons = {
      {"a_header_longer_than_file", {"header length 1000000000"}},
      {"b_overlapping_offsets", {"tensor b", "overlapping", "tensor a"}},
      {"c_unknown_dtype", {"tensor a", "Q7_X"}},
      {"d_size_does_not_match_shape", {"tensor a", "[3]", "6 bytes", "hold 4"}},
      {"e_cut_file", {"tensor w", "ends at byte 8", "holds 5 bytes"}},
      {"f_header_not_json", {"not a JSON object"}},
      {"g_negative_or_huge_shape", {"tensor a", "overflows"}},
  };
  int refused = 0;
  const boost::json::value document = boost::json::parse(text.str());
  for (const boost::json::value& item : document.at("files").as_array()) {
    const std::string name(item.at("name").as_string());
    const fs::path path = write(name, from_hex(std::string_view(item.at("hex").as_string())));
    if (name == "z_good") {
      const SafetensorsFile file = SafetensorsFile::open(path);
      ASSERT_NE(file.find("w"), nullptr);
      float values[2];
      std::memcpy(values, file.bytes(*file.find("w")).data(), sizeof(values));
      EXPECT_EQ(values[0], 1.0F);
      EXPECT_EQ(values[1], 2.0F);
      continue;
    }
    const auto begin = std::chrono::steady_clock::now();
    const std::string error = error_of(path);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
    EXPECT_THAT(error, HasSubstr(name));  // the file
    ASSERT_TRUE(reasons.contains(name)) << name;
    for (const std::string& part : reasons.at(name)) {
      EXPECT_THAT(error, HasSubstr(part));
    }
    ++refused;
  }
  EXPECT_EQ(refused, 7);
}

TEST_F(SafetensorsTest, RefusesEveryOtherWrongHeader) {
  const auto refuse = [&](const std::string& header, std::size_t data_bytes, const char* reason) {
    EXPECT_THAT(error_of(write_with_header(header, data_bytes)), HasSubstr(reason)) << header;
  };
  refuse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3, "leaving a gap");
  refuse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3, "1 bytes after the last");
  refuse(R"({"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}})", 2, "shape is not");
  refuse(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,2]}})", 2, "shape is not");
  refuse(R"({"a":{"dtype":"U8","shape":2,"data_offsets":[0,2]}})", 2, "shape is not");
  refuse(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,2]}})",
         2,
         "shape is not");
  refuse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", 2, "data_offsets is not");
  refuse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0]}})", 2, "data_offsets is not");
  refuse(R"({"a":{"shape":[2],"data_offsets":[0,2]}})", 2, "no dtype");
  refuse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"z":1}})", 2, "\"z\"");
  refuse(R"({"a":5})", 0, "not an object");
  refuse("[]", 0, "not a JSON object");
  EXPECT_THAT(error_of(write("short", "1234567")), HasSubstr("7 bytes are too few"));
  EXPECT_THAT(error_of(write("empty", "")), HasSubstr("0 bytes are too few"));
  EXPECT_THROW(SafetensorsFile::open(folder_ / "absent"), SystemError);
  EXPECT_THROW(SafetensorsFile::open(folder_), SystemError);
}

TEST_F(SafetensorsTest, EveryTypeRoundTripsAligned) {
  const std::vector<TensorSpec> specs = {{"b/f8", DType::kF8E4m3, {3}},
                                         {"scale", DType::kF8E8m0, {1}},
                                         {"i8", DType::kI8, {5}},
                                         {"u8", DType::kU8, {1, 7}},
                                         {"bf", DType::kBf16, {3, 1}},
                                         {"half", DType::kF16, {1}},
                                         {"f32", DType::kF32, {}},
                                         {"f64", DType::kF64, {2, 2}},
                                         {"i32", DType::kI32, {3}},
                                         {"i64", DType::kI64, {1}},
                                         {"none", DType::kF32, {0, 4}}};
  const fs::path path = folder_ / "all.safetensors";
  {
    SafetensorsWriter writer(path, specs, {{"format", "pt"}});
    for (const TensorSpec& spec : specs) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(spec.num_bytes()));
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>(spec.name[0] + static_cast<char>(i));
      }
      const std::span<const std::byte> all(bytes);
      writer.append(spec.name, all.first(bytes.size() / 2));
      writer.append(spec.name, all.subspan(bytes.size() / 2));
    }
    EXPECT_FALSE(fs::exists(path)) << "not there before it is whole";
    writer.finish();
  }
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().size(), specs.size());
  for (const TensorSpec& spec : specs) {
    const StoredTensor* tensor = file.find(spec.name);
    ASSERT_NE(tensor, nullptr) << spec.name;
    EXPECT_EQ(tensor->dtype, spec.dtype);
    EXPECT_EQ(tensor->shape, spec.shape);
    const std::span<const std::byte> bytes = file.bytes(*tensor);
    ASSERT_EQ(static_cast<int64_t>(bytes.size()), spec.num_bytes());
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(bytes.data()) % static_cast<uintptr_t>(dtype_bytes(spec.dtype)),
        0U);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_EQ(bytes[i], static_cast<std::byte>(spec.name[0] + static_cast<char>(i)));
    }
  }
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST_F(SafetensorsTest, AnUnfinishedWriterLeavesNothing) {
  {
    SafetensorsWriter writer(folder_ / "cut.safetensors", {{"w", DType::kF32, {2}}});
  }
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_THROW(SafetensorsWriter(folder_ / "no" / "folder", {}), SystemError);
}

TEST_F(SafetensorsTest, DtypeNamesAreBijective) {
  for (int i = 0; i <= static_cast<int>(DType::kI64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("F8_E5M2"), std::nullopt);
}

}  // namespace
}  // namespace baleen::weights
