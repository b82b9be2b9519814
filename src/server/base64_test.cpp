#include "server/base64.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace baleen::server {
namespace {

std::string coded(std::string_view text) {
  return base64(std::vector<uint8_t>(text.begin(), text.end()));
}

TEST(Base64Test, EveryLengthIsPadded) {
  // The vectors of RFC 4648.
  EXPECT_EQ(coded(""), "");
  EXPECT_EQ(coded("f"), "Zg==");
  EXPECT_EQ(coded("fo"), "Zm8=");
  EXPECT_EQ(coded("foo"), "Zm9v");
  EXPECT_EQ(coded("foob"), "Zm9vYg==");
  EXPECT_EQ(coded("fooba"), "Zm9vYmE=");
  EXPECT_EQ(coded("foobar"), "Zm9vYmFy");
  EXPECT_EQ(coded("\xFB\xFF\xBF"), "+/+/");
}

TEST(Base64Test, NumbersAreLittleEndian) {
  EXPECT_EQ(base64_of_numbers(std::vector<int32_t>{1, -1}), "AQAAAP////8=");
}

}  // namespace
}  // namespace baleen::server
