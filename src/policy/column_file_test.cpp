// Column files: round trip, alignment, damage at every byte, wrong wishes.

#include "policy/column_file.h"

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/error.h"

namespace baleen::policy {
namespace {

std::filesystem::path column_path(const char* name) {
  return std::filesystem::path(testing::TempDir()) / name;
}

std::string bytes_at(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(ColumnFileTest, GivesBackEveryColumnAligned) {
  const std::vector<int32_t> tokens = {1, -2, 3, 129279, 5, 6};
  const std::vector<float> logprobs = {-0.5F, -0.25F};
  const std::vector<uint8_t> mask = {1, 0, 1};
  const std::vector<uint16_t> routes = {1, 2, 383, 65535};
  const std::vector<int64_t> ids = {int64_t{1} << 40U};
  const std::vector<double> rewards;  // a column may be empty
  const auto path = column_path("columns_whole.bin");
  ColumnFileWriter writer(3);
  writer.add("tokens", {2, 3}, std::span(tokens));
  writer.add("logprobs", {2}, std::span(logprobs));
  writer.add("mask", {3}, std::span(mask));
  writer.add("routes", {1, 2, 2}, std::span(routes));
  writer.add("ids", {1}, std::span(ids));
  writer.add("rewards", {0}, std::span(rewards));
  writer.add_text("rows", R"([{"sample":7}])");
  writer.write(path);
  const ColumnFile file(path);
  EXPECT_EQ(file.rows(), 3);
  EXPECT_EQ(file.columns().size(), 7U);
  const auto equal = [](const auto& seen, const auto& wanted) {
    return std::equal(seen.begin(), seen.end(), wanted.begin(), wanted.end());
  };
  EXPECT_TRUE(equal(file.column<int32_t>("tokens"), tokens));
  EXPECT_TRUE(equal(file.column<float>("logprobs"), logprobs));
  EXPECT_TRUE(equal(file.column<uint8_t>("mask"), mask));
  EXPECT_TRUE(equal(file.column<uint16_t>("routes"), routes));
  EXPECT_TRUE(equal(file.column<int64_t>("ids"), ids));
  EXPECT_TRUE(file.column<double>("rewards").empty());
  EXPECT_EQ(file.text("rows"), R"([{"sample":7}])");
  EXPECT_EQ(file.column("tokens").shape, (std::vector<int64_t>{2, 3}));
  for (const ColumnFile::Column& column : file.columns()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(column.bytes.data()) % 64, 0U) << column.name;
  }
  EXPECT_FALSE(file.has("nothing"));
  EXPECT_THROW(file.column("nothing"), Error);
  EXPECT_THROW(file.column<float>("tokens"), Error);
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".part"));
}

TEST(ColumnFileTest, AFlippedOrMissingByteIsFound) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<uint8_t> mask = {1, 1};
  const auto path = column_path("columns_damaged.bin");
  ColumnFileWriter writer(1);
  writer.add("tokens", {3}, std::span(tokens));
  writer.add("mask", {2}, std::span(mask));
  writer.write(path);
  const std::string whole = bytes_at(path);
  const auto put = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  // The gaps before columns hold nothing.
  const auto table_end = static_cast<size_t>(whole.find_last_not_of('\0', 127)) + 1;
  for (size_t i = 0; i < whole.size(); ++i) {
    const bool gap = (i >= table_end && i < 128) || (i >= 140 && i < 192);
    if (gap) {
      continue;
    }
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
    put(damaged);
    EXPECT_THROW(ColumnFile{path}, Error) << "byte " << i;
  }
  for (size_t length = 0; length < whole.size(); ++length) {
    put(whole.substr(0, length));
    EXPECT_THROW(ColumnFile{path}, Error) << length << " bytes";
  }
  put(whole + "x");
  EXPECT_THROW(ColumnFile{path}, Error);
  put(whole);
  EXPECT_NO_THROW(ColumnFile{path});
  EXPECT_THROW(ColumnFile{column_path("columns_absent.bin")}, Error);
  EXPECT_THROW(writer.write("/proc/no/such.bin"), SystemError);
}

RC_GTEST_PROP(ColumnFilePropertyTest, AnyColumnsComeBack, ()) {
  const auto first = *rc::gen::arbitrary<std::vector<int32_t>>();
  const auto second = *rc::gen::arbitrary<std::vector<double>>();
  const auto name = "n" + *rc::gen::arbitrary<std::string>();
  const auto path = column_path("columns_property.bin");
  ColumnFileWriter writer(static_cast<int64_t>(first.size()));
  writer.add(name, {static_cast<int64_t>(first.size())}, std::span(first));
  writer.add("second", {static_cast<int64_t>(second.size()), 1}, std::span(second));
  writer.write(path);
  const ColumnFile file(path);
  const auto seen = file.column<int32_t>(name);
  RC_ASSERT(std::vector<int32_t>(seen.begin(), seen.end()) == first);
  const auto bytes = file.column("second").bytes;
  RC_ASSERT(bytes.size() == second.size() * sizeof(double));
  RC_ASSERT(
      bytes.empty() ||
      std::equal(bytes.begin(), bytes.end(), reinterpret_cast<const uint8_t*>(second.data())));
}

}  // namespace
}  // namespace baleen::policy
