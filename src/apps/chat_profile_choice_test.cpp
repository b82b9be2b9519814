#include "apps/chat_profile_choice.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "text/chat_prompt_texts.h"

namespace baleen::apps {
namespace {

using text::ChatProfile;

class ChatProfileChoiceTest : public testing::Test {
 protected:
  ChatProfileChoiceTest() {
    folder_ = std::filesystem::temp_directory_path() /
              ("chat_profile_" + std::to_string(::getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_ / "encoding");
  }
  ~ChatProfileChoiceTest() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, std::string_view text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  ChatProfileChoice choose(const std::optional<std::string>& declared,
                           bool has_dspark_keys,
                           const std::string& asked) {
    return choose_chat_profile(folder_, declared, has_dspark_keys, asked);
  }

  std::filesystem::path folder_;
};

TEST_F(ChatProfileChoiceTest, FirstReasonThatAppliesCounts) {
  EXPECT_EQ(choose({}, false, "").profile, ChatProfile::kV4);
  EXPECT_EQ(choose({}, false, "").reason, "default");
  EXPECT_EQ(choose({}, true, "").profile, ChatProfile::kV4_0731);
  EXPECT_EQ(choose("v4.1", true, "").profile, ChatProfile::kV41);
  EXPECT_EQ(choose("v4.1", true, "v4").profile, ChatProfile::kV4);
}

TEST_F(ChatProfileChoiceTest, EncoderFileTellsByItsOwnWords) {
  write("encoding/encoding_dsv4.py",
        text::effort_text(ChatProfile::kV4, {text::EffortLevel::kMax, 0}));
  EXPECT_EQ(choose({}, false, "").profile, ChatProfile::kV4);
  write("encoding/encoding_dsv4.py",
        text::effort_text(ChatProfile::kV4_0731, {text::EffortLevel::kMax, 0}));
  EXPECT_EQ(choose({}, false, "").profile, ChatProfile::kV4_0731);
  write("encoder.py", "SYSTEM = \"<｜System｜>\"");
  EXPECT_EQ(choose({}, false, "").profile, ChatProfile::kV41);
}

TEST_F(ChatProfileChoiceTest, UnknownNameIsRefused) {
  try {
    choose({}, false, "v5");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "unknown chat profile \"v5\": expected v4, v4-0731 or v4.1");
  }
}

}  // namespace
}  // namespace baleen::apps
