// The page as the server gives it: files, kinds, and what it is allowed to do.
#include "server/web/web_page.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"
#include "server/web/web_files.h"

namespace baleen::server {
namespace {

std::string header(const http::Response& response, const char* name) {
  const std::string* value = response.headers.find(name);
  return value == nullptr ? "" : *value;
}

std::string source_text(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(WebPageTest, EveryFileIsServedAsItStandsInTheFolder) {
  ScriptedApi api;
  std::set<std::string> served;
  for (const WebFile& file : web_files()) {
    const std::string path = "/assets/" + std::string(web_hash()) + "/" + std::string(file.name);
    const http::Response answer = *api.client().get(path);
    EXPECT_EQ(answer.status, 200) << path;
    EXPECT_EQ(answer.body, file.text);
    EXPECT_EQ(header(answer, "Content-Type"), file.type);
    EXPECT_NE(header(answer, "Cache-Control").find("immutable"), std::string::npos);
    served.insert(std::string(file.name));
  }
  for (const auto& entry : std::filesystem::directory_iterator("web")) {
    const std::string name = entry.path().filename();
    if (name != "index.html") {
      EXPECT_EQ(served.count(name), 1U) << name;
      for (const WebFile& file : web_files()) {
        if (file.name == name) {
          EXPECT_EQ(file.text, source_text(entry.path())) << name;
        }
      }
    }
  }
  EXPECT_EQ(served.count("chart.min.js"), 1U);
}

TEST(WebPageTest, ThePageNamesOnlyFilesThatAreThere) {
  ScriptedApi api;
  const http::Response page = *api.client().get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(header(page, "Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(header(page, "Cache-Control"), "no-cache");
  const std::regex reference("(?:src|href)=\"(/[^\"]*)\"");
  int count = 0;
  for (auto it = std::sregex_iterator(page.body.begin(), page.body.end(), reference);
       it != std::sregex_iterator();
       ++it) {
    EXPECT_EQ(api.client().get((*it)[1].str())->status, 200) << (*it)[1].str();
    ++count;
  }
  EXPECT_GE(count, 6);
  EXPECT_EQ(page.body.find("@assets@"), std::string::npos);
}

TEST(WebPageTest, ThePolicyForbidsEverythingButThisServer) {
  ScriptedApi api;
  const http::Response page = *api.client().get("/");
  const std::string policy = header(page, "Content-Security-Policy");
  EXPECT_EQ(policy, web_policy());
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
  for (const char* hole : {"unsafe", "*", "http:", "https:", "data:"}) {
    EXPECT_EQ(policy.find(hole), std::string::npos) << hole;
  }
  EXPECT_EQ(header(page, "X-Content-Type-Options"), "nosniff");
  // Nothing that the policy would stop: no script or style inside the page.
  const std::regex inside("<script>|<style|style=\"|\\son[a-z]+=\"|javascript:");
  EXPECT_FALSE(std::regex_search(page.body, inside));
}

TEST(WebPageTest, OldAndUnknownFilesAreNotFound) {
  ScriptedApi api;
  const std::string hash(web_hash());
  for (const std::string& path : {std::string("/assets/0000000000000000/app.js"),
                                  "/assets/" + hash + "/none.js",
                                  "/assets/" + hash,
                                  "/assets/" + hash + "/../index.html"}) {
    EXPECT_EQ(api.client().get(path)->status, 404) << path;
  }
}

TEST(WebPageTest, NeedsNoKeyWhileTheApiDoes) {
  ScriptedApiOptions options;
  options.server.api_key = "secret";
  ScriptedApi api(options);
  EXPECT_EQ(api.client().get("/")->status, 200);
  EXPECT_EQ(api.client().get("/v1/models")->status, 401);
  EXPECT_EQ(api.client().get("/live")->status, 401);
  EXPECT_EQ(api.client().get("/live/tree")->status, 401);
}

}  // namespace
}  // namespace baleen::server
