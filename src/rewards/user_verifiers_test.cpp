// Rewards of the user: a program over JSON lines, a service over HTTP, and how each may fail.

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "http/response_writer.h"
#include "http/server.h"
#include "rewards/external_verifier.h"
#include "rewards/make_verifier.h"
#include "rewards/remote_verifier.h"
#include "rewards/reward_pool.h"

namespace baleen::rewards {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// Ten lines: what a user writes.
constexpr const char* kProgram = R"py(
import json, os, sys, time
for line in sys.stdin:
    q = json.loads(line)
    r = q["response"]
    if r == "hang": time.sleep(60)
    if r == "die": sys.exit(3)
    if r == "garbage": print("no json", flush=True); continue
    if r == "twice": print("1\n2", flush=True); continue
    if r == "text": print('{"score": "high"}', flush=True); continue
    if r == "memory": x = bytearray(1 << 30); print(1.0, flush=True); continue
    if r == "pid": print(os.getpid(), flush=True); continue
    right = r.strip() == q["label"] or "{" + q["label"] + "}" in r
    print(json.dumps({"score": 1.0 if right else -0.5, "acc": right,
                      "detail": {"k": q["metadata"].get("k")}}), flush=True)
)py";

ExternalConfig program_config() {
  ExternalConfig config;
  config.command = {"python3", "-c", kProgram};
  config.memory_bytes = int64_t{600} << 20;
  return config;
}

RewardInput reward_input(std::string response, std::string label = "4") {
  RewardInput input;
  input.response = std::move(response);
  input.label = std::move(label);
  return input;
}

Result<Score> ask(const Verifier& verifier,
                  const std::string& response,
                  milliseconds timeout = milliseconds(20'000)) {
  return verifier.verify(reward_input(response), {std::chrono::steady_clock::now() + timeout});
}

TEST(ExternalVerifierTest, ScoresByTheProgram) {
  const ExternalVerifier verifier(program_config());
  EXPECT_NO_THROW(self_test(verifier, std::chrono::seconds(20)));
  RewardInput input = reward_input(" 4\n");
  input.metadata = R"({"k":[1,2]})";
  const Result<Score> right = verifier.verify(input, {});
  ASSERT_TRUE(right.ok()) << right.status().message;
  EXPECT_EQ(right->score, 1.0);
  EXPECT_EQ(right->acc, true);
  EXPECT_EQ(right->detail, R"({"k":[1,2]})");
  const Result<Score> wrong = ask(verifier, "5 \xE2\x9C\x93 \"quoted\"\nline");
  ASSERT_TRUE(wrong.ok()) << wrong.status().message;
  EXPECT_EQ(wrong->score, -0.5);
  EXPECT_EQ(wrong->acc, false);
}

TEST(ExternalVerifierTest, TheProgramIsKeptAndReplacedAfterAFailure) {
  const ExternalVerifier verifier(program_config());
  const double first = ask(verifier, "pid")->score;
  EXPECT_EQ(ask(verifier, "pid")->score, first);
  const std::pair<const char*, const char*> failures[] = {{"die", "ended"},
                                                          {"garbage", "no JSON"},
                                                          {"twice", "more than one line"},
                                                          {"text", "no number"},
                                                          {"memory", "ended"}};
  double last = first;
  for (const auto& [response, reason] : failures) {
    const Result<Score> failed = ask(verifier, response);
    ASSERT_FALSE(failed.ok()) << response;
    EXPECT_THAT(failed.status().message, HasSubstr(reason)) << response;
    const Result<Score> next = ask(verifier, "pid");
    ASSERT_TRUE(next.ok()) << next.status().message;
    EXPECT_NE(next->score, last);
    last = next->score;
  }
}

TEST(ExternalVerifierTest, AHangingProgramIsATimeOutAndIsKilled) {
  const auto verifier = std::make_shared<ExternalVerifier>(program_config());
  ASSERT_TRUE(ask(*verifier, "4").ok());
  RewardPoolConfig config;
  config.workers = 1;
  config.timeout = milliseconds(200);
  RewardPool pool(verifier, config);
  EXPECT_EQ(pool.score({reward_input("hang")})[0].kind, OutcomeKind::kTimeout);
  EXPECT_EQ(pool.take_counts().timeouts, 1);
  pool.shutdown();
}

TEST(ExternalVerifierTest, AMissingProgramIsNamed) {
  ExternalConfig config;
  config.command = {"/no/such/program"};
  const ExternalVerifier verifier(config);
  const Result<Score> failed = ask(verifier, "4");
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.status().message, HasSubstr("/no/such/program"));
  EXPECT_THROW(self_test(verifier, std::chrono::seconds(1)), ConfigError);
}

TEST(ExternalVerifierTest, LongResponsesDoNotBlock) {
  const ExternalVerifier verifier(program_config());
  const Result<Score> score = ask(verifier, std::string(4 << 20, 'x'));
  ASSERT_TRUE(score.ok()) << score.status().message;
  EXPECT_EQ(score->score, -0.5);
}

/// A reward service whose answers the test decides.
class RemoteVerifierTest : public testing::Test {
 protected:
  RemoteVerifierTest() {
    http::Router router;
    router.add("POST", "/score", [this](http::Request&& request, http::ResponseWriter writer) {
      const int call = calls++;
      {
        const std::lock_guard lock(mutex);
        last_body = request.body;
      }
      if (call < failures) {
        writer.respond(http::Response::text(failure_status, "busy"));
      } else {
        writer.respond(http::Response::json(200, answer));
      }
    });
    http::ServerConfig config;
    config.port = 0;
    server = std::make_unique<http::Server>(config, std::move(router), http::ServerHooks{});
    server->start();
  }
  ~RemoteVerifierTest() override { server->shutdown(std::chrono::seconds(1)); }

  RemoteVerifier verifier(const std::string& path = "/score") const {
    RemoteConfig config;
    config.url = "http://127.0.0.1:" + std::to_string(server->port()) + path;
    config.first_pause = milliseconds(1);
    return RemoteVerifier(config);
  }

  std::atomic<int> calls = 0;
  std::atomic<int> failures = 0;
  std::atomic<int> failure_status = 503;
  std::string answer = "0.75";
  std::mutex mutex;
  std::string last_body;
  std::unique_ptr<http::Server> server;
};

TEST_F(RemoteVerifierTest, ScoresByTheService) {
  EXPECT_EQ(ask(verifier(), "4")->score, 0.75);
  EXPECT_THAT(last_body, HasSubstr(R"("response":"4")"));
  EXPECT_THAT(last_body, HasSubstr(R"("label":"4")"));
  EXPECT_NO_THROW(self_test(verifier(), std::chrono::seconds(5)));
}

TEST_F(RemoteVerifierTest, TriesAgainWhileTheServiceIsBusy) {
  failures = 3;
  EXPECT_EQ(ask(verifier(), "4")->score, 0.75);
  EXPECT_EQ(calls, 4);
  calls = 0;
  failures = 100;
  const Result<Score> failed = ask(verifier(), "4");
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.status().message, HasSubstr("503"));
  EXPECT_EQ(calls, 5);
}

TEST_F(RemoteVerifierTest, RefusalsAndNonsenseAreErrorsAtOnce) {
  failures = 100;
  failure_status = 400;
  EXPECT_FALSE(ask(verifier(), "4").ok());
  EXPECT_EQ(calls, 1);
  failures = 0;
  answer = "\"good\"";
  const Result<Score> failed = ask(verifier(), "4");
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.status().message, HasSubstr("no number"));
}

TEST_F(RemoteVerifierTest, AServiceThatIsNotThereFailsWithinTheTimeLimit) {
  RemoteConfig config;
  config.url = "http://127.0.0.1:1/score";
  config.first_pause = milliseconds(10);
  EXPECT_FALSE(ask(RemoteVerifier(config), "4", milliseconds(500)).ok());
  EXPECT_THROW(RemoteVerifier(RemoteConfig{.url = "ftp://x"}), ConfigError);
}

}  // namespace
}  // namespace baleen::rewards
