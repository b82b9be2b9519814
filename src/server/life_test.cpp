// Clients that leave, queues that fill, engines that fail, shutdown, health and metrics.
#include <future>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr const char* kPath = "/v1/chat/completions";
constexpr const char* kBody = R"({"model": "m", "messages": [{"role": "user", "content": "hi"}]})";
constexpr const char* kStreamBody =
    R"({"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]})";

ScriptedApiOptions slow() {
  ScriptedApiOptions options;
  options.step_delay = microseconds(2000);
  options.max_context = 1 << 20;
  options.server.drain_timeout = milliseconds(200);
  return options;
}

/// A client that takes one piece of a stream and then hangs up.
void take_one_piece(ScriptedApi& api, const char* body) {
  int num_pieces = 0;
  const http::ClientRequest request{"POST", kPath, {}, body};
  const Result<http::Response> answer =
      api.client().stream(request, [&](std::string_view) { return ++num_pieces < 2; });
  ASSERT_TRUE(answer.ok()) << answer.status().message;
  EXPECT_EQ(answer->status, 200) << answer->body;
}

TEST(LifeTest, LeavingAStreamFreesTheSlot) {
  ScriptedApi api(slow());
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  take_one_piece(api, kStreamBody);
  EXPECT_TRUE(api.idle_soon());
  EXPECT_NE(api.metrics.expose().find("sglang:num_aborted_requests_total"), std::string::npos);
}

TEST(LifeTest, LeavingAStreamOfSeveralChoicesFreesAllSlots) {
  ScriptedApi api(slow());
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  take_one_piece(
      api,
      R"({"model": "m", "stream": true, "n": 5, "messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_TRUE(api.idle_soon());
}

TEST(LifeTest, LeavingBeforeAWholeAnswerFreesTheSlot) {
  ScriptedApi api(slow());
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  http::ClientConfig client_config;
  client_config.read_timeout = milliseconds(100);
  http::Client impatient(api.server->url(), client_config);
  EXPECT_EQ(impatient.post(kPath, kBody).status().code, StatusCode::kUnavailable);
  EXPECT_TRUE(api.idle_soon());
}

TEST(LifeTest, FullQueueIs429AndOthersGoOn) {
  ScriptedApiOptions options = slow();
  options.num_slots = 1;
  options.max_queued = 1;
  ScriptedApi api(options);
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  auto running = std::async(std::launch::async, [&] { take_one_piece(api, kStreamBody); });
  while (api.engine->stats().num_running == 0) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  // One runs, one waits; with three choices more at least one does not fit.
  const http::Response refused =
      api.post(kPath, R"({"model": "m", "n": 3, "messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_EQ(json::parse(refused.body).at("error").at("type"), "rate_limit_error");
  EXPECT_NE(refused.headers.find("Retry-After"), nullptr);
  running.get();
  EXPECT_TRUE(api.idle_soon());
}

TEST(LifeTest, EngineFailureIs503AndHealthSaysSo) {
  ScriptedApi api;
  engine::Script script = engine::script_of_text(*api.tokenizer, "abc");
  script.fail_after = 1;
  api.set(script);
  const http::Response answer = api.post(kPath, kBody);
  EXPECT_EQ(answer.status, 503) << answer.body;
  http::Client client = api.client();
  const http::Response health = *client.get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(json::parse(health.body).at("error").at("type"), "service_unavailable");
  EXPECT_EQ(client.post(kPath, kBody)->status, 503);
  EXPECT_EQ(client.get("/v1/models")->status, 200);
}

TEST(LifeTest, ErrorInsideAStreamIsItsLastEvent) {
  ScriptedApi api;
  engine::Script script = engine::script_of_text(*api.tokenizer, "abcdef");
  script.nan_after = 2;
  api.set(script);
  const StreamedEvents events = api.stream(kPath, kStreamBody);
  EXPECT_EQ(events.status, 200);
  EXPECT_FALSE(events.done);
  ASSERT_GE(events.chunks.size(), 2U);
  EXPECT_EQ(events.chunks.back().at("error").at("type"), "server_error");
  EXPECT_EQ(api.post(kPath, kBody).status, 500);  // the same, before any byte went out
  EXPECT_EQ(api.client().get("/health")->status, 200);
}

TEST(LifeTest, DrainFinishesWhatRunsAndRefusesNewWork) {
  ScriptedApiOptions options = slow();
  options.server.drain_timeout = milliseconds(20'000);
  ScriptedApi api(options);
  api.emit(std::string(200, 'x'));
  auto running = std::async(std::launch::async, [&] { return api.stream(kPath, kStreamBody); });
  while (api.engine->stats().num_running == 0) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  http::Client client = api.client();
  EXPECT_EQ(client.get("/health")->status, 200);
  auto drained = std::async(std::launch::async, [&] { return api.server->drain(); });
  int health = 200;
  while (health == 200 && drained.wait_for(milliseconds(1)) != std::future_status::ready) {
    health = client.get("/health")->status;
  }
  EXPECT_EQ(health, 503);
  EXPECT_EQ(client.post(kPath, kBody)->status, 503);
  EXPECT_TRUE(drained.get());
  const StreamedEvents events = running.get();
  EXPECT_TRUE(events.done);
  EXPECT_EQ(join_choice(events.chunks).content, std::string(200, 'x'));
  EXPECT_EQ(client.get("/health").status().code, StatusCode::kUnavailable);
}

TEST(LifeTest, DrainCutsWhatOutlastsItsTime) {
  ScriptedApi api(slow());
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  auto running = std::async(std::launch::async, [&] { return api.stream(kPath, kStreamBody); });
  while (api.engine->stats().num_running == 0) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_FALSE(api.server->drain());
  const StreamedEvents events = running.get();
  EXPECT_FALSE(events.done);
  EXPECT_EQ(events.chunks.back().at("error").at("type"), "service_unavailable");
}

TEST(LifeTest, ModelCardShowsProfileAndDefaults) {
  ScriptedApiOptions options;
  options.server.chat_profile = text::ChatProfile::kV4_0731;
  options.server.default_thinking = true;
  options.server.model_path = "/models/x";
  ScriptedApi api(options);
  const json::value list = json::parse(api.client().get("/v1/models")->body);
  EXPECT_EQ(list.at("object"), "list");
  const json::value& card = list.at("data").at(0);
  EXPECT_EQ(card.at("id"), "m");
  EXPECT_EQ(card.at("object"), "model");
  EXPECT_EQ(card.at("owned_by"), "baleen");
  EXPECT_EQ(card.at("root"), "/models/x");
  EXPECT_EQ(card.at("max_model_len"), 4096);
  EXPECT_EQ(card.at("chat_profile"), "v4-0731");
  EXPECT_EQ(card.at("default_effort"), "low");
  EXPECT_EQ(card.at("default_thinking"), true);
  EXPECT_EQ(json::parse(api.client().get("/v1/models/m")->body), card);
}

TEST(LifeTest, MetricsCountRequestsAndTokens) {
  ScriptedApi api;
  api.emit("abc");
  api.post(kPath, kBody);
  api.post(kPath, "{}");
  const http::Response page = *api.client().get("/metrics");
  EXPECT_TRUE(page.headers.find("Content-Type")->starts_with("text/plain; version=0.0.4"));
  for (const char* line :
       {"sglang:num_requests_total",
        "sglang:prompt_tokens_total",
        "sglang:generation_tokens_total",
        "sglang:time_to_first_token_seconds_bucket",
        "sglang:num_running_reqs",
        "baleen:unparsable_tool_blocks_total",
        "sglang:process_cpu_seconds_total",
        "sglang:http_requests_total{endpoint=\"/v1/chat/completions\",method=\"POST\"} 2",
        "sglang:http_responses_total{endpoint=\"/v1/chat/completions\",status_code=\"200\"} 1",
        "sglang:http_responses_total{endpoint=\"/v1/chat/completions\",status_code=\"400\"} 1"}) {
    EXPECT_NE(page.body.find(line), std::string::npos) << line << "\n" << page.body;
  }
}

TEST(ServerConfigTest, NamesTheFieldAtFault) {
  const auto fault_of = [](const ServerConfig& config) {
    try {
      config.validate();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  ServerConfig good;
  good.model_name = "m";
  EXPECT_EQ(fault_of(good), "");
  ServerConfig config;
  EXPECT_NE(fault_of(config).find("served-model-name"), std::string::npos);
  config = good;
  config.api_key = "two words";
  EXPECT_NE(fault_of(config).find("api-key"), std::string::npos);
  config = good;
  config.drain_timeout = milliseconds(-1);
  EXPECT_NE(fault_of(config).find("drain-timeout"), std::string::npos);
  config = good;
  config.http.port = -1;
  EXPECT_NE(fault_of(config).find("port"), std::string::npos);
  for (const auto profile :
       {text::ChatProfile::kV4, text::ChatProfile::kV4_0731, text::ChatProfile::kV41}) {
    EXPECT_EQ(parse_chat_profile(chat_profile_name(profile)), profile);
  }
  EXPECT_EQ(parse_chat_profile("v5"), std::nullopt);
}

}  // namespace
}  // namespace baleen::server
