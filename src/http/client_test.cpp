// A client whose wait is broken off from outside, by a server that never answers.

#include "http/client.h"

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "http/response_writer.h"
#include "http/server.h"

namespace baleen::http {
namespace {

constexpr std::chrono::milliseconds kPatience{20'000};  // far below the client's ten minutes

/// "/": answers at once. "/hung": never. "/half": one event, then nothing.
class CancelledClientTest : public testing::Test {
 protected:
  CancelledClientTest() {
    Router router;
    router.add("GET", "/", [](Request&&, ResponseWriter writer) {
      writer.respond(Response::json(200, "{}"));
    });
    router.add("GET", "/hung", [this](Request&&, ResponseWriter writer) {
      const std::lock_guard lock(mutex_);
      hung_.push_back(std::move(writer));
      ++arrived_;
      changed_.notify_all();
    });
    router.add("GET", "/half", [this](Request&&, ResponseWriter writer) {
      const std::lock_guard lock(mutex_);
      half_.push_back(std::move(writer).start_events());
      half_.back().send("first");
    });
    ServerConfig config;
    config.port = 0;
    server_.emplace(config, std::move(router), ServerHooks{});
    server_->start();
    client_.emplace(server_->url(), ClientConfig{});
  }
  ~CancelledClientTest() override { let_go(); }

  bool wait_for_request() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return arrived_ > 0; });
  }
  /// Lets a call end that was not broken off, so that a failing test ends too.
  void let_go() {
    const std::lock_guard lock(mutex_);
    hung_.clear();
    half_.clear();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  std::vector<ResponseWriter> hung_;
  std::vector<EventStream> half_;
  std::optional<Server> server_;
  std::optional<Client> client_;
};

TEST_F(CancelledClientTest, ACallThatWaitsEndsAndSoDoLaterOnes) {
  EXPECT_TRUE(client_->get("/").ok());
  std::future<Result<Response>> waiting =
      std::async(std::launch::async, [&] { return client_->get("/hung"); });
  ASSERT_TRUE(wait_for_request());
  client_->cancel();
  EXPECT_EQ(waiting.wait_for(kPatience), std::future_status::ready);
  let_go();
  EXPECT_EQ(waiting.get().status().code, StatusCode::kCancelled);
  const Result<Response> later = client_->get("/");
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(later.status().code, StatusCode::kCancelled);
  EXPECT_NE(later.status().message.find(server_->url()), std::string::npos);
  EXPECT_EQ(arrived_, 1) << "a broken off call is not made again";
}

TEST_F(CancelledClientTest, AStreamEndsInItsMiddle) {
  const auto answer = client_->stream({"GET", "/half", {}, {}}, [&](std::string_view) {
    client_->cancel();
    return true;
  });
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.status().code, StatusCode::kCancelled);
}

// Before, during and behind the connection, the request and the answer.
TEST_F(CancelledClientTest, AtAnyMomentTheCallIsAnsweredOrCancelled) {
  for (int round = 0; round < 100; ++round) {
    Client client(server_->url(), {});
    const std::jthread other([&] {
      for (int i = 0; i < round; ++i) {
        std::this_thread::yield();
      }
      client.cancel();
    });
    while (true) {
      const Result<Response> answer = client.get("/");
      if (!answer.ok()) {
        EXPECT_EQ(answer.status().code, StatusCode::kCancelled) << answer.status().message;
        break;
      }
    }
  }
}

}  // namespace
}  // namespace baleen::http
