// Event files: known checksums, read back by an independent reader in Python, resumed, torn.

#include "policy/tensorboard_file.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "base/error.h"

namespace baleen::policy {
namespace {

namespace bj = boost::json;

class TensorboardFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(testing::TempDir()) /
             ("tensorboard_" +
              std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  /// Events as tests/readers/read_event_file.py tells them.
  std::vector<bj::object> read_back(const std::filesystem::path& path) const {
    const std::string command = "python3 tests/readers/read_event_file.py '" + path.string() + "'";
    FILE* pipe = popen(command.c_str(), "r");  // NOLINT: one thread
    std::string text;
    char piece[4096];
    for (size_t count = 0; (count = fread(piece, 1, sizeof(piece), pipe)) > 0;) {
      text.append(piece, count);
    }
    EXPECT_EQ(pclose(pipe), 0);
    std::vector<bj::object> events;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      events.push_back(bj::parse(line).as_object());
    }
    return events;
  }

  static double value(const bj::object& event, const char* name) {
    return event.at("values").at(name).to_number<double>();
  }

  std::filesystem::path folder;
};

TEST_F(TensorboardFileTest, ChecksumsAreTheKnownOnes) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST_F(TensorboardFileTest, AnIndependentReaderFindsEveryNumber) {
  TensorboardFile file(folder, 0);
  file.write(0, 1000.5, {{"train/loss", -0.25}, {"drift/mean_abs", 0.0}});
  file.write(300, 1001.0, {{"train/loss", 1e-30}, {"bad", NAN}, {"also_bad", INFINITY}});
  file.write(int64_t{1} << 40U, 1002.0, {});
  const auto events = read_back(file.path());
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].at("file_version").as_string(), "brain.Event:2");
  EXPECT_EQ(events[1].at("wall_time").to_number<double>(), 1000.5);
  EXPECT_EQ(events[1].at("step").to_number<int64_t>(), 0);
  EXPECT_EQ(value(events[1], "train/loss"), -0.25);
  EXPECT_EQ(value(events[1], "drift/mean_abs"), 0.0);
  EXPECT_EQ(events[2].at("step").to_number<int64_t>(), 300);
  EXPECT_EQ(static_cast<float>(value(events[2], "train/loss")), 1e-30F);
  EXPECT_EQ(events[2].at("values").as_object().size(), 1U);
  EXPECT_EQ(events[3].at("step").to_number<int64_t>(), int64_t{1} << 40U);
}

TEST_F(TensorboardFileTest, AResumedRunReadsAsAnUninterruptedOne) {
  const auto write_steps = [&](int64_t begin, int64_t end) {
    TensorboardFile file(folder, begin);
    for (int64_t step = begin; step < end; ++step) {
      file.write(step, static_cast<double>(step), {{"x", static_cast<double>(step)}});
    }
    return file.path();
  };
  const auto path = write_steps(0, 5);
  const auto bytes_of = [&] {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  write_steps(5, 8);
  const std::string whole = bytes_of();
  write_steps(3, 8);  // killed behind step 4, resumed at 3
  EXPECT_EQ(bytes_of(), whole);
  // A crash in the middle of a record: whatever is torn goes, at any byte.
  for (const size_t cut : {whole.size() - 1, whole.size() - 20, size_t{13}, size_t{0}}) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, cut);
    const int64_t next = cut > whole.size() / 2 ? 7 : 0;
    write_steps(next, 8);
    const auto events = read_back(path);
    ASSERT_EQ(events.size(), 9U) << cut;
    for (size_t i = 1; i < events.size(); ++i) {
      EXPECT_EQ(value(events[i], "x"), static_cast<double>(i - 1));
    }
  }
}

TEST_F(TensorboardFileTest, AFolderThatCannotBeMadeIsNamed) {
  try {
    const TensorboardFile file("/proc/no/such", 0);
    FAIL() << "wrote to /proc";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("/proc/no/such"), std::string::npos);
  }
}

}  // namespace
}  // namespace baleen::policy
