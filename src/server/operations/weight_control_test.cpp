// Weights and memory over HTTP: updates, their names in answers, release and resume, keys.
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

constexpr const char* kUpdatePath = "/update_weights_from_disk";

/// Takes every folder but "bad"; counts.
struct Updates {
  std::atomic<int> count{0};
  ScriptedApiOptions options() {
    ScriptedApiOptions options;
    options.step_delay = std::chrono::microseconds(500);
    options.max_context = 1 << 20;
    options.weight_version = "first";
    options.on_update = [this](const std::string& folder) {
      ++count;
      return folder == "bad" ? Status::invalid("bad/config.json: cannot be read") : Status();
    };
    return options;
  }
};

std::future<json::value> ask_later(ScriptedApi& api, int max_tokens) {
  return std::async(std::launch::async, [&api, max_tokens] {
    return api.ok("/generate",
                  R"({"text": "q", "sampling_params": {"ignore_eos": true, "max_new_tokens": )" +
                      std::to_string(max_tokens) + "}}");
  });
}

void wait_until_running(ScriptedApi& api) {
  for (int i = 0; i < 500 && api.engine->stats().num_used_tokens < 10; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string version_of(const json::value& answer) {
  return std::string(answer.at("meta_info").at("weight_version").as_string());
}

TEST(WeightControlTest, AnswersNameTheWeightsTheyEndedWith) {
  Updates updates;
  ScriptedApi api(updates.options());
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  EXPECT_EQ(version_of(ask_later(api, 3).get()), "first");
  auto running = ask_later(api, 600);
  wait_until_running(api);
  const json::value update =
      api.ok(kUpdatePath, R"({"model_path": "new", "weight_version": "step-2"})");
  EXPECT_EQ(update.at("success"), true);
  EXPECT_EQ(update.at("num_paused_requests").as_int64(), 0);
  const json::value answer = running.get();
  EXPECT_EQ(version_of(answer), "step-2");
  EXPECT_EQ(answer.at("output_ids").as_array().size(), 600U);
  EXPECT_EQ(api.ok(kChatPath, R"({"model": "m", "max_tokens": 2,
                                  "messages": [{"role": "user", "content": "hi"}]})")
                .at("metadata")
                .at("weight_version"),
            "step-2");
  EXPECT_EQ(json::parse(api.client().get("/weight_version")->body).at("weight_version"), "step-2");
  EXPECT_EQ(json::parse(api.client().get("/model_info")->body).at("weight_version"), "step-2");
  api.ok("/update_weight_version", R"({"new_version": "v3"})");
  EXPECT_EQ(json::parse(api.client().get("/server_info")->body).at("weight_version"), "v3");
  EXPECT_EQ(updates.count, 1);
}

TEST(WeightControlTest, InFlightRequestsInEveryPauseMode) {
  Updates updates;
  ScriptedApi api(updates.options());
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  for (const std::string mode : {"abort", "retract", "in_place"}) {
    SCOPED_TRACE(mode);
    auto running = ask_later(api, 400);
    wait_until_running(api);
    api.ok("/pause_generation", R"({"mode": ")" + mode + R"("})");
    const bool held = mode == "in_place";
    const http::Response flushing = api.post(kUpdatePath, R"({"model_path": "new"})");
    EXPECT_EQ(flushing.status, held ? 400 : 200) << flushing.body;
    if (held) {
      EXPECT_NE(flushing.body.find("held in place"), std::string::npos);
      const json::value update =
          api.ok(kUpdatePath, R"({"model_path": "n", "flush_cache": false})");
      EXPECT_EQ(update.at("num_paused_requests").as_int64(), 1);
    } else {
      EXPECT_EQ(json::parse(flushing.body).at("num_paused_requests").as_int64(),
                mode == "abort" ? 0 : 1);
    }
    EXPECT_EQ(running.wait_for(std::chrono::milliseconds(50)),
              mode == "abort" ? std::future_status::ready : std::future_status::timeout);
    api.ok("/continue_generation", "");
    EXPECT_EQ(running.get().at("meta_info").at("finish_reason").at("type"),
              mode == "abort" ? "abort" : "length");
  }
}

TEST(WeightControlTest, AnUpdateCanAbortAndStayPaused) {
  Updates updates;
  ScriptedApi api(updates.options());
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  auto running = ask_later(api, 100000);
  wait_until_running(api);
  api.ok(kUpdatePath, R"({"model_path": "new", "abort_all_requests": true, "keep_pause": true})");
  EXPECT_EQ(running.get().at("meta_info").at("finish_reason").at("type"), "abort");
  EXPECT_TRUE(api.engine->stats().is_paused);
  api.ok("/continue_generation", "");
  EXPECT_EQ(ask_later(api, 2).get().at("output_ids").as_array().size(), 2U);
}

TEST(WeightControlTest, AFailedUpdateIsNamedAndChangesNothing) {
  Updates updates;
  ScriptedApi api(updates.options());
  api.emit("x");
  const http::Response answer =
      api.post(kUpdatePath, R"({"model_path": "bad", "weight_version": "no"})");
  EXPECT_EQ(answer.status, 400);
  const json::value error = json::parse(answer.body).at("error");
  EXPECT_EQ(error.at("param"), "model_path");
  EXPECT_NE(error.at("message").as_string().find("bad/config.json"), std::string::npos);
  EXPECT_FALSE(api.engine->stats().is_paused);
  EXPECT_EQ(version_of(ask_later(api, 1).get()), "first");
  for (const char* body : {"{}",
                           R"({"model_path": 1})",
                           R"({"model_path": "n", "is_async": true})",
                           R"({"model_path": "n", "load_format": "gguf"})",
                           R"({"model_path": "n", "weight_version": "two words"})",
                           R"({"model_path": "n", "x": 1})"}) {
    EXPECT_EQ(api.post(kUpdatePath, body).status, 400) << body;
  }
  EXPECT_EQ(updates.count, 1) << "only well-formed orders reach the engine";
  EXPECT_EQ(api.post("/update_weight_version", "{}").status, 400);
  ScriptedApi without;
  EXPECT_EQ(without.post(kUpdatePath, R"({"model_path": "n"})").status, 400);
}

TEST(WeightControlTest, RequestsWaitWhileMemoryIsReleased) {
  ScriptedApi api;
  api.emit("one two three");
  api.ok("/release_memory_occupation", R"({"tags": ["kv_cache", "cuda_graph"]})");
  api.ok("/release_memory_occupation", "");
  EXPECT_EQ(
      json::serialize(json::parse(api.client().get("/server_info")->body).at("released_memory")),
      R"(["kv_cache","weights"])");
  auto waiting = ask_later(api, 2);
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  EXPECT_EQ(api.post("/continue_generation", "").status, 400);
  api.ok("/resume_memory_occupation", R"({"tags": ["weights"]})");
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_EQ(api.client().get("/resume_memory_occupation")->status, 200);
  EXPECT_EQ(waiting.get().at("output_ids").as_array().size(), 2U);
  EXPECT_EQ(api.post("/release_memory_occupation", R"({"tags": ["hope"]})").status, 400);
  EXPECT_EQ(api.post("/resume_memory_occupation", R"({"tags": 1})").status, 400);
}

TEST(WeightControlTest, NeedsTheAdminKey) {
  ScriptedApiOptions options;
  options.server.api_key = "user";
  options.server.admin_api_key = "root";
  ScriptedApi api(options);
  for (const char* path : {kUpdatePath,
                           "/weights/begin",
                           "/weights/bucket",
                           "/weights/end",
                           "/update_weight_version",
                           "/release_memory_occupation",
                           "/resume_memory_occupation"}) {
    const http::ClientRequest request{"POST", path, {{"Authorization", "Bearer user"}}, "{}"};
    EXPECT_EQ(api.client().send(request)->status, 403) << path;
  }
}

/// Keeps what it is told; refuses an end, and buckets of no update.
class KeptMessages final : public WeightStreams {
 public:
  Result<std::string> begin(std::string_view manifest) override {
    told += "begin " + std::string(manifest);
    return std::string(R"({"update":1})");
  }
  Result<std::string> bucket(std::string_view message) override {
    if (message.empty()) {
      return Status{StatusCode::kNotFound, "no update", "update", "weight_update_not_open"};
    }
    told += " bucket of " + std::to_string(message.size());
    return std::string("{}");
  }
  Result<std::string> end(std::string_view) override {
    return Status{StatusCode::kUnavailable, "no weights are left", {}, {}};
  }
  std::string told;
};

TEST(WeightControlTest, MessagesOfWeightsGoToWhoTakesThemAsTheyAre) {
  ScriptedApiOptions options;
  const auto kept = std::make_shared<KeptMessages>();
  options.server.weight_streams = kept;
  ScriptedApi api(options);
  EXPECT_EQ(api.post("/weights/begin", "{}").body, R"({"update":1})");
  EXPECT_EQ(api.post("/weights/bucket", std::string("\0\xFF no JSON", 10)).status, 200);
  EXPECT_EQ(kept->told, "begin {} bucket of 10");
  const http::Response refused = api.post("/weights/end", "");
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("no weights are left"), std::string::npos);
  const http::Response lost = api.post("/weights/bucket", "");
  EXPECT_EQ(lost.status, 404);
  EXPECT_EQ(json::parse(lost.body).at("error").at("code"), "weight_update_not_open");
  ScriptedApi without;
  const http::Response nobody = without.post("/weights/begin", "{}");
  EXPECT_EQ(nobody.status, 404);
  EXPECT_TRUE(json::parse(nobody.body).at("error").at("code").is_null());
}

}  // namespace
}  // namespace baleen::server
