// Paths for those who run the server: health, facts, aborts, keys.
#include <future>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

int get_status(ScriptedApi& api, const std::string& path, http::Headers headers = {}) {
  const http::ClientRequest request{"GET", path, std::move(headers), ""};
  const Result<http::Response> answer = api.client().send(request);
  EXPECT_TRUE(answer.ok()) << answer.status().message;
  return answer.ok() ? answer->status : 0;
}

json::value get(ScriptedApi& api, const std::string& path) {
  const Result<http::Response> answer = api.client().get(path);
  EXPECT_EQ(answer->status, 200) << answer->body;
  return json::parse(answer->body);
}

TEST(OperationsTest, HealthGenerateMakesAToken) {
  ScriptedApi api;
  api.emit("x");
  EXPECT_EQ(get_status(api, "/health_generate"), 200);
  EXPECT_EQ(get_status(api, "/ping"), 200);
  EXPECT_EQ(api.last_prompt(), std::vector<int32_t>{api.tokenizer->bos_id()});
  engine::Script fails = engine::script_of_text(*api.tokenizer, "abc");
  fails.fail_after = 0;
  api.set(fails);
  EXPECT_EQ(get_status(api, "/health_generate"), 503);
}

TEST(OperationsTest, HealthGenerateTimesOutWhereNothingMoves) {
  ScriptedApiOptions options;
  options.step_delay = std::chrono::microseconds(700'000);
  options.server.health_timeout = std::chrono::milliseconds(100);
  ScriptedApi api(options);
  api.emit("x");
  EXPECT_EQ(get_status(api, "/health_generate"), 503);
}

TEST(OperationsTest, HealthSaysThatAStepDoesNotEndUntilItDoes) {
  ScriptedApiOptions options;
  options.step_delay = std::chrono::seconds(2);
  options.step_timeout_s = 0.02;
  ScriptedApi api(options);
  api.emit("x");
  EXPECT_EQ(get_status(api, "/health"), 200);
  auto answer = std::async(std::launch::async, [&] {
    return api.post(kTextPath, R"({"model": "m", "prompt": "q", "max_tokens": 1})");
  });
  for (int i = 0; i < 1000 && api.engine->stats().late_step_s == 0.0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto response = api.client().get("/health");
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 503);
  EXPECT_NE(response->body.find("a step has not ended for"), std::string::npos) << response->body;
  EXPECT_EQ(answer.get().status, 200);
  EXPECT_EQ(get_status(api, "/health"), 200);
}

TEST(OperationsTest, HealthGenerateSucceedsWhileTheQueueIsFull) {
  ScriptedApiOptions options;
  options.step_delay = std::chrono::microseconds(1000);
  options.num_slots = 1;
  options.max_queued = 0;
  options.max_context = 1 << 20;
  ScriptedApi api(options);
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  auto answer = std::async(std::launch::async, [&] {
    return api.post(kTextPath, R"({"model": "m", "prompt": "q", "max_tokens": 100000})");
  });
  for (int i = 0; i < 500 && api.engine->stats().num_running == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(get_status(api, "/health_generate"), 200);
  EXPECT_GE(api.ok("/abort_request", R"({"abort_all": true})").at("num_aborted").as_int64(), 1);
  EXPECT_EQ(json::parse(answer.get().body).at("choices").at(0).at("finish_reason"), "abort");
}

TEST(OperationsTest, FactsSayWhatIsServed) {
  ScriptedApiOptions options;
  options.weight_version = "v7";
  options.server.api_key = "";
  ScriptedApi api(options);
  for (const char* path : {"/model_info", "/get_model_info"}) {
    EXPECT_EQ(get(api, path).at("weight_version"), "v7");
    EXPECT_EQ(get(api, path).at("is_generation"), true);
  }
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const json::value info = get(api, path);
    EXPECT_EQ(info.at("context_length").as_int64(), 4096);
    EXPECT_EQ(info.at("state"), "running");
    EXPECT_EQ(info.at("internal_states").at(0).at("num_running_reqs").as_int64(), 0);
  }
  EXPECT_EQ(get(api, "/get_load").at(0).at("num_reqs").as_int64(), 0);
}

TEST(OperationsTest, AbortNeedsToKnowWhat) {
  ScriptedApi api;
  EXPECT_EQ(api.post("/abort_request", "").status, 400);
  EXPECT_EQ(api.post("/abort_request", R"({"id": "x"})").status, 400);
  EXPECT_EQ(api.ok("/abort_request", R"({"abort_all": true})").at("num_aborted").as_int64(), 0);
}

TEST(OperationsTest, AbortEndsAllChoicesOfAnAnswer) {
  ScriptedApiOptions options;
  options.step_delay = std::chrono::microseconds(1000);
  options.max_context = 1 << 20;
  ScriptedApi api(options);
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  auto answer = std::async(std::launch::async, [&] {
    return api.ok(kChatPath, R"({"model": "m", "n": 3, "rid": "chat-1",
                                 "messages": [{"role": "user", "content": "hi"}]})");
  });
  for (int i = 0; i < 500 && api.engine->stats().num_running < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(api.ok("/abort_request", R"({"rid": "chat-1"})").at("num_aborted").as_int64(), 1);
  const json::value body = answer.get();
  EXPECT_EQ(body.at("id"), "chat-1");
  for (const json::value& choice : body.at("choices").as_array()) {
    EXPECT_EQ(choice.at("finish_reason"), "abort");
  }
  EXPECT_TRUE(api.idle_soon());
}

TEST(OperationsTest, PausedRequestsGoOnLater) {
  ScriptedApiOptions options;
  options.step_delay = std::chrono::microseconds(500);
  ScriptedApi api(options);
  api.emit("one two three four five six seven eight nine ten");
  const auto ask = [&] {
    return std::async(std::launch::async, [&] {
      return api.ok(kTextPath, R"({"model": "m", "prompt": "q", "max_tokens": 100})");
    });
  };
  for (const char* mode : {"in_place", "retract"}) {
    EXPECT_EQ(api.ok("/pause_generation", R"({"mode": ")" + std::string(mode) + R"("})"),
              json::value(json::object{{"success", true}}));
    auto waiting = ask();
    EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
    api.ok("/continue_generation", "");
    EXPECT_EQ(waiting.get().at("choices").at(0).at("finish_reason"), "stop");
  }
  EXPECT_EQ(api.post("/pause_generation", R"({"mode": "softly"})").status, 400);
  EXPECT_EQ(api.post("/continue_generation", R"({"x": 1})").status, 400);
}

TEST(OperationsTest, PausingCanAbort) {
  ScriptedApiOptions options;
  options.step_delay = std::chrono::microseconds(1000);
  options.max_context = 1 << 20;
  ScriptedApi api(options);
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  auto answer = std::async(std::launch::async, [&] {
    return api.ok(kTextPath, R"({"model": "m", "prompt": "q", "max_tokens": 100000})");
  });
  for (int i = 0; i < 500 && api.engine->stats().num_running == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(get_status(api, "/flush_cache"), 400) << "a request runs";
  api.ok("/pause_generation", "");
  EXPECT_EQ(answer.get().at("choices").at(0).at("finish_reason"), "abort");
  EXPECT_EQ(get_status(api, "/flush_cache"), 200);
  api.ok("/continue_generation", "");
}

TEST(OperationsTest, ControlNeedsTheAdminKey) {
  ScriptedApiOptions options;
  options.server.api_key = "user";
  options.server.admin_api_key = "root";
  ScriptedApi api(options);
  const auto abort_with = [&](const http::Headers& headers) {
    const http::ClientRequest request{"POST", "/abort_request", headers, R"({"abort_all": true})"};
    return api.client().send(request)->status;
  };
  EXPECT_EQ(abort_with({}), 401);
  EXPECT_EQ(abort_with({{"Authorization", "Bearer wrong"}}), 401);
  EXPECT_EQ(abort_with({{"Authorization", "Bearer user"}}), 403);
  EXPECT_EQ(abort_with({{"Authorization", "Bearer root"}}), 200);
  EXPECT_EQ(get_status(api, "/health"), 200);
  EXPECT_EQ(get_status(api, "/server_info"), 401);
  EXPECT_EQ(get_status(api, "/server_info", {{"Authorization", "Bearer user"}}), 200);
}

}  // namespace
}  // namespace baleen::server
