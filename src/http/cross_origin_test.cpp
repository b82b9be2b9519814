// Browsers that call from pages of other origins.
#include <gtest/gtest.h>

#include "http/client.h"
#include "http/response_writer.h"
#include "http/server.h"

namespace baleen::http {
namespace {

class CrossOriginTest : public testing::Test {
 protected:
  /// A server that allows these origins, and a client of it.
  Client serve(std::vector<std::string> origins) {
    ServerConfig config;
    config.port = 0;
    config.cors_origins = std::move(origins);
    Router router;
    router.add("POST", "/say", [](Request&&, ResponseWriter writer) {
      writer.respond(Response::text(200, "hello"));
    });
    router.add("GET", "/events", [](Request&&, ResponseWriter writer) {
      EventStream events = std::move(writer).start_events();
      events.send("one");
      events.close();
    });
    server = std::make_unique<Server>(config, std::move(router), ServerHooks{});
    server->start();
    return Client(server->url(), {});
  }
  static std::string allowed(const Result<Response>& answer) {
    const std::string* value = answer->headers.find("Access-Control-Allow-Origin");
    return value != nullptr ? *value : "";
  }
  static ClientRequest preflight(const std::string& origin) {
    return {"OPTIONS",
            "/say",
            {{"Origin", origin},
             {"Access-Control-Request-Method", "POST"},
             {"Access-Control-Request-Headers", "authorization, content-type"}},
            ""};
  }
  std::unique_ptr<Server> server;
};

TEST_F(CrossOriginTest, NothingIsAllowedUnlessAsked) {
  Client client = serve({});
  EXPECT_EQ(allowed(client.send({"POST", "/say", {{"Origin", "https://a.example"}}, ""})), "");
  EXPECT_EQ(client.send(preflight("https://a.example"))->status, 405);
}

TEST_F(CrossOriginTest, ListedOriginsMayCall) {
  Client client = serve({"https://a.example", "http://b.example:8080"});
  const auto asked = client.send(preflight("https://a.example"));
  EXPECT_EQ(asked->status, 204);
  EXPECT_EQ(allowed(asked), "https://a.example");
  EXPECT_EQ(*asked->headers.find("Access-Control-Allow-Headers"), "authorization, content-type");
  EXPECT_NE(asked->headers.find("Access-Control-Allow-Methods")->find("POST"), std::string::npos);
  const auto said = client.send({"POST", "/say", {{"Origin", "http://b.example:8080"}}, ""});
  EXPECT_EQ(said->body, "hello");
  EXPECT_EQ(allowed(said), "http://b.example:8080");
  EXPECT_EQ(*said->headers.find("Vary"), "Origin");
  // Errors and streams too, or the page could not read them.
  EXPECT_EQ(allowed(client.send({"POST", "/none", {{"Origin", "https://a.example"}}, ""})),
            "https://a.example");
  EXPECT_EQ(allowed(client.send({"GET", "/events", {{"Origin", "https://a.example"}}, ""})),
            "https://a.example");
  // The next request of the connection stands by itself.
  EXPECT_EQ(allowed(client.send({"POST", "/say", {}, ""})), "");
}

TEST_F(CrossOriginTest, OthersMayNot) {
  Client client = serve({"https://a.example"});
  for (const char* origin : {"https://a.example.evil", "http://a.example", "null"}) {
    EXPECT_EQ(allowed(client.send({"POST", "/say", {{"Origin", origin}}, ""})), "") << origin;
    EXPECT_EQ(client.send(preflight(origin))->status, 405) << origin;
  }
}

TEST_F(CrossOriginTest, AStarAllowsAll) {
  Client client = serve({"*"});
  EXPECT_EQ(allowed(client.send({"POST", "/say", {{"Origin", "null"}}, ""})), "*");
  EXPECT_EQ(client.send(preflight("https://c.example"))->status, 204);
}

}  // namespace
}  // namespace baleen::http
