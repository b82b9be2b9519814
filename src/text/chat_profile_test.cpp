#include "text/chat_profile.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"

namespace baleen::text {
namespace {

namespace fs = std::filesystem;

class ChatProfileTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("baleen_profile_" + std::to_string(getpid()) + "_" + info->name());
    fs::create_directories(folder_ / "encoding");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  void expect(ChatProfile profile, const std::string& reason) const {
    const ChatProfileChoice choice = choose_chat_profile(folder_);
    EXPECT_EQ(choice.profile, profile) << choice.reason;
    EXPECT_THAT(choice.reason, testing::HasSubstr(reason));
  }

  fs::path folder_;
};

TEST_F(ChatProfileTest, PreviewIsWhatNothingContradicts) {
  expect(ChatProfile::kV4, "nothing");
  write("config.json", R"({"model_type": "deepseek_v4", "rope_scaling": {"dspark_x": 1}})");
  write("encoding/encoding_dsv4.py", "text = 'Reasoning Effort: Absolute maximum'");
  expect(ChatProfile::kV4, "nothing");
}

TEST_F(ChatProfileTest, Revision0731) {
  write("config.json", R"({"model_type": "deepseek_v4", "dspark_num_layers": 2})");
  expect(ChatProfile::kV4_0731, "dspark_num_layers");
  write("config.json", R"({"model_type": "deepseek_v4"})");
  write("encoding/encoding_dsv4.py", "MAX = 'Reasoning Effort: Beyond maximum — exhaustive'");
  expect(ChatProfile::kV4_0731, "encoding/encoding_dsv4.py");
}

TEST_F(ChatProfileTest, V41) {
  write("encoding.py", "Reasoning Effort: Beyond maximum; s = '<｜System｜>'");
  expect(ChatProfile::kV41, "encoding.py");
  write("encoding.py", R"(s = '<\uff5cSystem\uff5c>')");
  expect(ChatProfile::kV41, "encoding.py");
  write("encoding.py", "");
  for (const std::string type : {"deepseek_v4_1", "deepseek_v41", "deepseek_v4.1"}) {
    write("config.json", "{\"model_type\": \"" + type + "\"}");
    expect(ChatProfile::kV41, type);
  }
}

TEST_F(ChatProfileTest, WhatIsSaidOutrightCounts) {
  write("config.json", R"({"model_type": "deepseek_v41"})");
  write("generation_config.json", R"({"chat_profile": "v4-0731"})");
  expect(ChatProfile::kV4_0731, "generation_config.json");
  const ChatProfileChoice choice = choose_chat_profile(folder_, "v4");
  EXPECT_EQ(choice.profile, ChatProfile::kV4);
  EXPECT_EQ(choice.reason, "--chat-profile");
}

TEST_F(ChatProfileTest, RefusesUnknownNamesAndBrokenFiles) {
  EXPECT_THROW(choose_chat_profile(folder_, "v5"), ConfigError);
  write("generation_config.json", R"({"chat_profile": "v5"})");
  try {
    choose_chat_profile(folder_);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("generation_config.json: chat_profile"));
    EXPECT_THAT(error.what(), testing::HasSubstr("'v5'"));
  }
  write("generation_config.json", "{");
  EXPECT_THROW(choose_chat_profile(folder_), ConfigError);
}

TEST(ChatProfileNameTest, RoundTrips) {
  for (const std::string_view name : {"v4", "v4-0731", "v4.1"}) {
    EXPECT_EQ(chat_profile_name(parse_chat_profile(name).value()), name);
  }
  EXPECT_EQ(parse_chat_profile("V4"), std::nullopt);
}

}  // namespace
}  // namespace baleen::text
