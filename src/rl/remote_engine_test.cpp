// A server as an engine: what is asked, what is read, what a server that breaks off means. The
// server here answers by script; the real one is in tests/e2e/test_rl_servers.py.

#include "rl/remote_engine.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "base/error.h"
#include "http/response_writer.h"
#include "http/server.h"
#include "rl/rollout_events.h"
#include "weights/model_presets.h"
#include "weights/weight_frames.h"

namespace baleen::rl {
namespace {

namespace json = boost::json;

constexpr std::chrono::milliseconds kLong{20'000};

/// Two buckets of no tensors.
class EmptySource final : public weights::WeightSource {
 public:
  EmptySource() : manifest_(weights::weight_manifest(weights::tiny_config(), {}, "contract", 3)) {}
  const weights::WeightManifest& manifest() const override { return manifest_; }
  std::optional<weights::WeightBucket> next() override {
    return ++given_ <= 2 ? std::optional(weights::WeightBucket{}) : std::nullopt;
  }
  std::string root() const override { return "root"; }

 private:
  weights::WeightManifest manifest_;
  int given_ = 0;
};

/// Requests that are never answered, until they are let go.
class HungRequests {
 public:
  void hold(http::ResponseWriter writer) {
    const std::lock_guard lock(mutex_);
    held_.push_back(std::move(writer));
    arrived_.notify_all();
  }
  bool wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    return arrived_.wait_for(lock, kLong, [&] { return held_.size() >= count; });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    held_.clear();
  }
  void count_abort() { ++aborts_; }
  int aborts() const { return aborts_; }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<http::ResponseWriter> held_;
  std::atomic<int> aborts_{0};
};

class RemoteEngineTest : public testing::Test {
 protected:
  RemoteEngineTest() {
    http::Router router;
    add(router, "/weights/begin", [this](const std::string& body) {
      EXPECT_EQ(weights::read_manifest_message(body).version, 3);
      return http::Response::json(begin_status_, R"({"update": 5})");
    });
    add(router, "/weights/bucket", [this](const std::string& body) {
      EXPECT_EQ(weights::read_bucket_message(body).update, 5U);
      ++buckets_;
      return http::Response::json(bucket_status_, bucket_answer_);
    });
    add(router, "/weights/end", [](const std::string& body) {
      EXPECT_EQ(weights::read_end_message(body).root, "root");
      return http::Response::json(200, "{}");
    });
    add(router, "/generate", [this](const std::string& body) {
      const json::value asked = json::parse(body);
      asked_ = asked;
      return http::Response::json(generate_status_, answer_);
    });
    router.add("POST", "/hung/weights/begin", [](http::Request&&, http::ResponseWriter writer) {
      writer.respond(http::Response::json(200, R"({"update": 6})"));
    });
    for (const char* path : {"/hung/weights/bucket", "/hung/weights/end"}) {
      router.add("POST", path, [](http::Request&&, http::ResponseWriter writer) {
        writer.respond(http::Response::json(200, "{}"));
      });
    }
    router.add("POST", "/hung/generate", [this](http::Request&&, http::ResponseWriter writer) {
      hung_.hold(std::move(writer));
    });
    router.add("POST", "/hung/abort_request", [this](http::Request&&, http::ResponseWriter writer) {
      hung_.count_abort();
      hung_.hold(std::move(writer));
    });
    http::ServerConfig config;
    config.port = 0;
    server_ = std::make_unique<http::Server>(config, std::move(router), http::ServerHooks{});
    server_->start();
    engine_ = std::make_unique<RemoteEngine>(server_->url(),
                                             RemoteOptions{.threads = 2, .end_token_ids = {1}});
  }

  template <class Answer>
  static void add(http::Router& router, const char* path, Answer answer) {
    router.add("POST", path, [answer](http::Request&& request, http::ResponseWriter writer) {
      writer.respond(answer(request.body));
    });
  }

  bool publish() {
    EmptySource source;
    return engine_->publish(source, 3);
  }

  engine::OutputEvent answered() {
    engine::GenerationRequest request;
    request.id = "r0-1-0";
    request.prompt = {3, 8, 4};
    request.max_new_tokens = 9;
    request.want_logprobs = true;
    request.sampling.temperature = 0.75F;
    request.sampling.seed = 0xFEDCBA9876543210ULL;
    const Status status =
        engine_->submit(std::move(request), std::make_shared<QueueSink>(events_, 17));
    EXPECT_TRUE(status.ok()) << status.message;
    std::optional<SampleEvent> event = events_->pop(kLong);
    EXPECT_TRUE(event && event->index == 17);
    return event ? std::move(event->event) : engine::OutputEvent{};
  }

  std::atomic<int> buckets_{0};
  std::atomic<int> bucket_status_{200};
  std::string bucket_answer_ = "{}";
  std::atomic<int> begin_status_{200};
  std::atomic<int> generate_status_{200};
  std::string answer_ =
      R"({"text": "", "output_ids": [9, 1], "meta_info": {"finish_reason": {"type": "stop"},
          "weight_version": "3", "cached_tokens": 2,
          "output_token_logprobs": [[-0.3333333432674408, 9, null], [-1.1754943508222875e-38, 1, null]]}})";
  json::value asked_;
  HungRequests hung_;
  std::unique_ptr<http::Server> server_;
  std::shared_ptr<EventQueue> events_ = std::make_shared<EventQueue>();
  std::unique_ptr<RemoteEngine> engine_;
};

TEST_F(RemoteEngineTest, DrawsOnceItHasWeights) {
  EXPECT_FALSE(engine_->healthy());
  EXPECT_FALSE(engine_->submit({}, std::make_shared<QueueSink>(events_, 1)).ok());
  ASSERT_TRUE(publish());
  EXPECT_EQ(buckets_, 2);
  EXPECT_TRUE(engine_->healthy());
  const engine::OutputEvent event = answered();
  ASSERT_TRUE(event.finish);
  EXPECT_EQ(event.finish->reason, engine::FinishReason::kStop);
  EXPECT_EQ(event.finish->cached_tokens, 2);
  ASSERT_EQ(event.tokens.size(), 2U);
  EXPECT_EQ(event.tokens[0].id, 9);
  EXPECT_EQ(event.tokens[0].logprob, -0.3333333432674408F);  // every bit
  EXPECT_EQ(event.tokens[1].logprob, -1.1754943508222875e-38F);
  EXPECT_EQ(asked_.at("input_ids"), json::parse("[3, 8, 4]"));
  EXPECT_EQ(asked_.at("rid"), "r0-1-0");
  EXPECT_EQ(asked_.at("return_logprob"), true);
  const json::object& sampling = asked_.at("sampling_params").as_object();
  EXPECT_EQ(sampling.at("sampling_seed").to_number<uint64_t>(), 0xFEDCBA9876543210ULL);
  EXPECT_EQ(sampling.at("temperature").to_number<double>(), 0.75);
  EXPECT_EQ(sampling.at("max_new_tokens").to_number<int>(), 9);
}

TEST_F(RemoteEngineTest, AServerThatBreaksOffIsOutUntilTheNextWeights) {
  ASSERT_TRUE(publish());
  generate_status_ = 503;
  const engine::OutputEvent event = answered();
  ASSERT_TRUE(event.finish);
  EXPECT_EQ(event.finish->reason, engine::FinishReason::kError);
  EXPECT_FALSE(engine_->healthy());
  EXPECT_NE(engine_->health_message().find("503"), std::string::npos);
  EXPECT_FALSE(engine_->submit({}, std::make_shared<QueueSink>(events_, 1)).ok());
  begin_status_ = 503;
  EXPECT_FALSE(publish());
  EXPECT_FALSE(engine_->healthy());
  begin_status_ = 200;
  generate_status_ = 200;
  EXPECT_TRUE(publish());
  EXPECT_TRUE(engine_->healthy());
  EXPECT_EQ(answered().finish->reason, engine::FinishReason::kStop);
}

TEST_F(RemoteEngineTest, AServerStartedAnewInTheMiddleOfAnUpdateIsOut) {
  ASSERT_TRUE(publish());
  bucket_status_ = 404;
  bucket_answer_ = R"({"error": {"message": "gone", "code": "weight_update_not_open"}})";
  EXPECT_FALSE(publish());
  EXPECT_EQ(buckets_, 3) << "nothing follows the first answer";
  EXPECT_FALSE(engine_->healthy());
  bucket_status_ = 200;
  bucket_answer_ = "{}";
  EXPECT_TRUE(publish());
  EXPECT_TRUE(engine_->healthy());
}

TEST_F(RemoteEngineTest, WhatAServerHasForgottenIsToldByItsCodeNotByItsWords) {
  bucket_status_ = 400;
  for (const char* answer : {R"({"error": {"message": "update 5 is not open", "code": null}})",
                             "update 5 is not open"}) {
    bucket_answer_ = answer;
    EXPECT_THROW(publish(), Error) << answer;
  }
}

TEST_F(RemoteEngineTest, RefusedWeightsAndOtherWeightsAreErrors) {
  begin_status_ = 400;
  EXPECT_THROW(publish(), Error);
  EXPECT_FALSE(engine_->healthy());
  begin_status_ = 200;
  ASSERT_TRUE(publish());
  generate_status_ = 400;
  EXPECT_EQ(answered().finish->reason, engine::FinishReason::kError);
  EXPECT_TRUE(engine_->healthy()) << "the request is at fault";
  generate_status_ = 200;
  EXPECT_THROW(read_generated(answer_, "4"), Error);
  answer_.replace(answer_.find(R"("3")"), 3, R"("4")");
  EXPECT_EQ(answered().finish->reason, engine::FinishReason::kError);
  EXPECT_FALSE(engine_->healthy()) << "it has other weights";
  EXPECT_NE(engine_->health_message().find("with weights 4 where 3"), std::string::npos);
  EXPECT_THROW(read_generated(R"({"output_ids": []})", "3"), Error);
  EXPECT_THROW(read_generated("no json", "3"), Error);
}

// Two answers are under way and one waits. The client would wait ten minutes for each.
TEST_F(RemoteEngineTest, AServerThatNeverAnswersDoesNotHoldTheDestructor) {
  auto engine = std::make_unique<RemoteEngine>(server_->url() + "/hung",
                                               RemoteOptions{.threads = 2, .end_token_ids = {1}});
  EmptySource source;
  ASSERT_TRUE(engine->publish(source, 3));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine->submit({}, std::make_shared<QueueSink>(events_, i)).ok());
  }
  ASSERT_TRUE(hung_.wait_for(2));
  std::future<void> ended = std::async(std::launch::async, [&] { engine.reset(); });
  EXPECT_EQ(ended.wait_for(kLong), std::future_status::ready);
  hung_.let_go();
  ended.get();
  for (int i = 0; i < 3; ++i) {
    const std::optional<SampleEvent> event = events_->pop(kLong);
    ASSERT_TRUE(event && event->event.finish);
    EXPECT_EQ(event->event.finish->reason, engine::FinishReason::kError);
    EXPECT_EQ(event->event.finish->error.code, StatusCode::kCancelled);
  }
}

TEST_F(RemoteEngineTest, AServerThatHearsNoAbortIsOutWithAllThatItWasAsked) {
  RemoteEngine engine(
      server_->url() + "/hung",
      RemoteOptions{
          .threads = 2, .end_token_ids = {1}, .abort_timeout = std::chrono::milliseconds(50)});
  EmptySource source;
  ASSERT_TRUE(engine.publish(source, 3));
  for (int i = 0; i < 3; ++i) {
    engine::GenerationRequest request;
    request.id = "r" + std::to_string(i);
    ASSERT_TRUE(engine.submit(std::move(request), std::make_shared<QueueSink>(events_, i)).ok());
  }
  ASSERT_TRUE(hung_.wait_for(2));
  engine.abort("r0");
  EXPECT_FALSE(engine.healthy());
  engine.abort("r1");  // nobody is asked any more
  for (int i = 0; i < 3; ++i) {
    const std::optional<SampleEvent> event = events_->pop(kLong);
    ASSERT_TRUE(event && event->event.finish);
    EXPECT_EQ(event->event.finish->error.code, StatusCode::kUnavailable);
    EXPECT_NE(event->event.finish->error.message.find("cannot read"), std::string::npos);
  }
  EXPECT_EQ(hung_.aborts(), 1);
  EmptySource again;
  ASSERT_TRUE(engine.publish(again, 3));
  ASSERT_TRUE(engine.submit({}, std::make_shared<QueueSink>(events_, 9)).ok());
  EXPECT_TRUE(hung_.wait_for(4)) << "it is asked again: two answers, an abort, an answer";
}

TEST_F(RemoteEngineTest, AServerThatIsNotThereIsNoEngine) {
  server_->shutdown(std::chrono::milliseconds(100));
  EXPECT_FALSE(publish());
  EXPECT_FALSE(engine_->healthy());
  EXPECT_THROW(RemoteEngine("no address", {}), ConfigError);
}

}  // namespace
}  // namespace baleen::rl
