#include "http/message.h"

#include <gtest/gtest.h>

#include "http/response_writer.h"

namespace baleen::http {
namespace {

TEST(HeadersTest, ComparesNamesWithoutCase) {
  const Headers headers{{"Content-Type", "a"}, {"content-type", "b"}};
  ASSERT_NE(headers.find("CONTENT-TYPE"), nullptr);
  EXPECT_EQ(*headers.find("CONTENT-TYPE"), "a");
  EXPECT_EQ(headers.find("Content-Typ"), nullptr);
}

class RouterTest : public testing::Test {
 protected:
  RouterTest() {
    const auto nothing = [](Request&&, ResponseWriter) {};
    router.add("GET", "/a", nothing);
    router.add("POST", "/a", nothing);
    router.add_prefix("GET", "/a/", nothing);
    router.add_prefix("GET", "/a/b/", nothing);
    router.add("GET", "/a/exact", nothing);
    router.add_prefix("GET", "/job/", nothing);
    router.add_prefix("POST", "/job/", nothing, "/cancel");
  }
  Router router;
};

TEST_F(RouterTest, ExactBeforePrefixAndLongPrefixBeforeShort) {
  EXPECT_EQ(router.find("GET", "/a").route, "/a");
  EXPECT_EQ(router.find("GET", "/a/exact").route, "/a/exact");
  EXPECT_EQ(router.find("GET", "/a/b/c/d").route, "/a/b/");
  EXPECT_EQ(router.find("GET", "/a/b/c/d").parameter, "c/d");
  EXPECT_EQ(router.find("GET", "/a/b").route, "/a/");
}

TEST_F(RouterTest, TellsUnknownPathFromWrongMethod) {
  EXPECT_EQ(router.find("GET", "/nope").handler, nullptr);
  EXPECT_TRUE(router.find("GET", "/nope").allowed_methods.empty());
  EXPECT_EQ(router.find("GET", "/a/").handler, nullptr);  // a prefix needs a rest
  const Router::Match match = router.find("DELETE", "/a");
  EXPECT_EQ(match.handler, nullptr);
  EXPECT_EQ(match.allowed_methods, (std::vector<std::string>{"GET", "POST"}));
}

TEST_F(RouterTest, ASuffixMakesAPathOfItsOwn) {
  using Methods = std::vector<std::string>;
  const Router::Match match = router.find("POST", "/job/7/x/cancel");
  EXPECT_NE(match.handler, nullptr);
  EXPECT_EQ(match.parameter, "7/x");
  EXPECT_EQ(router.find("GET", "/job/7").parameter, "7");
  EXPECT_EQ(router.find("OPTIONS", "/job/7").allowed_methods, Methods{"GET"});
  EXPECT_EQ(router.find("GET", "/job/7/cancel").handler, nullptr);
  EXPECT_EQ(router.find("GET", "/job/7/cancel").allowed_methods, Methods{"POST"});
  EXPECT_EQ(router.find("GET", "/job/cancel").parameter, "cancel") << "a suffix needs a rest";
}

TEST_F(RouterTest, HeadUsesTheGetRoute) {
  EXPECT_NE(router.find("HEAD", "/a").handler, nullptr);
}

}  // namespace
}  // namespace baleen::http
