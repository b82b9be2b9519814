#pragma once
// For tests: the real API server on a scripted executor, and a client. A test says what the model
// emits for the next prompts; what the model was shown is kept for inspection.
//
//   ScriptedApi api;
//   api.emit("42");
//   json::value body = api.ok("/v1/completions", R"({"model": "m", "prompt": "6*7="})");

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <gtest/gtest.h>

#include "cache/cache_test_options.h"
#include "engine/engine.h"
#include "engine/scripted_executor.h"
#include "http/client.h"
#include "http/sse_reader.h"
#include "server/api_server.h"
#include "text/tokenizer.h"

namespace baleen::server {

namespace json = boost::json;

inline constexpr const char* kChatPath = "/v1/chat/completions";
inline constexpr const char* kTextPath = "/v1/completions";

inline json::value read_json_file(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return json::parse(text.str());
}

struct ScriptedApiOptions {
  ServerConfig server;
  int32_t num_slots = 64;
  int64_t max_context = 4096;
  int32_t max_queued = 1024;
  std::chrono::microseconds step_delay{0};
  double step_timeout_s = 0.0;
  std::string weight_version = "default";
  std::optional<cache::ChoiceLayout> choices = std::nullopt;
  std::shared_ptr<const cache::TokenRoutes> token_routes = nullptr;
  std::function<Status(const std::string& folder)> on_update = {};
  int32_t max_drafts = 0;
  bool cache = false;  // prompts continue behind what others left in shared pages of real size
};

/// One streamed answer as a client sees it.
struct StreamedEvents {
  int status = 0;
  std::string error_body;               // where the status is not 200
  std::vector<json::value> chunks;      // every event but [DONE]
  std::vector<std::string> names;       // of the events, where the dialect gives them
  std::vector<std::string> after_done;  // must stay empty
  bool done = false;
};

class ScriptedApi {
 public:
  explicit ScriptedApi(ScriptedApiOptions options = {}) {
    tokenizer = text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json");
    engine::ScriptedExecutor::Options executor;
    executor.capacity = {.num_slots = options.num_slots,
                         .max_context = options.max_context,
                         .max_step_tokens = 2048,
                         .vocab_size = tokenizer->vocab_size(),
                         .max_drafts = options.max_drafts,
                         .choices = options.choices};
    if (options.cache) {
      executor.capacity.cache = cache::full_size(512, 256).cache;
      executor.capacity.cache->request_slots = options.num_slots;
      executor.capacity.cache->verified_tokens = options.max_drafts + 1;
    }
    executor.token_routes = options.token_routes;
    executor.on_update = options.on_update;
    executor.end_token_id = tokenizer->eos_id();
    executor.step_delay = options.step_delay;
    executor.lookup = [this](std::span<const int32_t> prompt) {
      const std::lock_guard lock(mutex_);
      prompts_.emplace_back(prompt.begin(), prompt.end());
      return script_;
    };
    engine::EngineConfig config = engine::EngineConfig::for_tokenizer(*tokenizer);
    config.max_queued = options.max_queued;
    config.step_timeout_s = options.step_timeout_s;
    config.weight_version = options.weight_version;
    engine = std::make_unique<engine::Engine>(
        config, std::make_unique<engine::ScriptedExecutor>(executor), tokenizer, metrics);
    options.server.http.port = 0;
    if (options.server.model_name.empty()) {
      options.server.model_name = "m";
    }
    server = std::make_unique<ApiServer>(options.server, *engine, tokenizer, metrics);
    engine->start();
    server->start();
  }
  ~ScriptedApi() {
    engine->stop();
    server.reset();
  }

  void emit(const std::string& text, engine::ScriptEnd end = engine::ScriptEnd::kStop) {
    set(engine::script_of_text(*tokenizer, text, end));
  }
  void emit_pieces(const std::vector<std::string>& pieces,
                   engine::ScriptEnd end = engine::ScriptEnd::kStop) {
    set(engine::script_of_pieces(*tokenizer, pieces, end));
  }
  void set(engine::Script script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }
  std::vector<int32_t> last_prompt() {
    const std::lock_guard lock(mutex_);
    return prompts_.empty() ? std::vector<int32_t>() : prompts_.back();
  }
  std::string last_prompt_text() { return tokenizer->decode(last_prompt()); }

  http::Client client() { return http::Client(server->url(), {}); }
  http::Response post(const std::string& path, const std::string& body) {
    const Result<http::Response> answer = client().post(path, body);
    EXPECT_TRUE(answer.ok()) << answer.status().message;
    return answer.ok() ? *answer : http::Response{};
  }
  /// The body of an answer that must be 200.
  json::value ok(const std::string& path, const std::string& body) {
    const http::Response answer = post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.status == 200 ? json::parse(answer.body) : json::value(json::object());
  }
  StreamedEvents stream(const std::string& path, const std::string& body) {
    StreamedEvents events;
    http::SseReader reader;
    const http::ClientRequest request{"POST", path, {}, body};
    const Result<http::Response> answer = client().stream(request, [&](std::string_view piece) {
      reader.push(piece, [&](const http::SseEvent& event) {
        if (events.done) {
          events.after_done.push_back(event.data);
        } else if (event.data == "[DONE]") {
          events.done = true;
        } else {
          events.chunks.push_back(json::parse(event.data));
          events.names.push_back(event.event);
        }
      });
      return true;
    });
    EXPECT_TRUE(answer.ok()) << answer.status().message;
    if (answer.ok()) {
      events.status = answer->status;
      events.error_body = answer->body;
    }
    return events;
  }
  /// Waits until nothing runs; false after five seconds.
  bool idle_soon() {
    for (int i = 0; i < 500; ++i) {
      const engine::EngineStats stats = engine->stats();
      if (stats.num_running == 0 && stats.num_waiting == 0) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  std::shared_ptr<const text::Tokenizer> tokenizer;
  MetricRegistry metrics;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<ApiServer> server;

 private:
  std::mutex mutex_;
  engine::Script script_;
  std::vector<std::vector<int32_t>> prompts_;
};

/// A streamed choice put together again, as a client does it.
struct JoinedChoice {
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
    int num_argument_deltas = 0;
    bool in_order = true;  // id, type and name once, before the arguments
  };
  std::string role;
  std::string reasoning;
  std::string content;
  std::string text;
  std::vector<Call> calls;
  std::string finish_reason;
  json::value matched_stop;
  json::array logprobs;
  std::vector<std::string> deltas;  // every text and argument piece by itself
};

inline JoinedChoice join_choice(const std::vector<json::value>& chunks, int64_t index = 0) {
  JoinedChoice joined;
  const auto text_of = [&](const json::object& object, const char* name, std::string& out) {
    const json::value* value = object.if_contains(name);
    if (value != nullptr && value->is_string()) {
      joined.deltas.emplace_back(value->get_string());
      out += value->get_string();
    }
  };
  for (const json::value& chunk : chunks) {
    for (const json::value& entry : chunk.at("choices").as_array()) {
      if (entry.at("index").as_int64() != index) {
        continue;
      }
      const json::object& choice = entry.as_object();
      EXPECT_EQ(joined.finish_reason, "") << "nothing follows the finish reason";
      text_of(choice, "text", joined.text);
      if (const json::value* delta = choice.if_contains("delta")) {
        const json::object& object = delta->as_object();
        if (const json::value* role = object.if_contains("role")) {
          EXPECT_EQ(joined.role, "");
          joined.role = std::string(role->as_string());
        }
        text_of(object, "reasoning_content", joined.reasoning);
        text_of(object, "content", joined.content);
        if (const json::value* calls = object.if_contains("tool_calls")) {
          for (const json::value& piece : calls->as_array()) {
            const auto place = static_cast<size_t>(piece.at("index").as_int64());
            const json::object& function = piece.at("function").as_object();
            if (function.contains("name")) {
              EXPECT_EQ(place, joined.calls.size());
              EXPECT_EQ(piece.at("type").as_string(), "function");
              EXPECT_EQ(function.at("arguments").as_string(), "");
              joined.calls.push_back({std::string(piece.at("id").as_string()),
                                      std::string(function.at("name").as_string()),
                                      "",
                                      0,
                                      true});
              continue;
            }
            EXPECT_FALSE(piece.as_object().contains("id"));
            JoinedChoice::Call& call = joined.calls.at(place);
            text_of(function, "arguments", call.arguments);
            ++call.num_argument_deltas;
          }
        }
      }
      if (const json::value* logprobs = choice.if_contains("logprobs");
          logprobs != nullptr && !logprobs->is_null()) {
        if (const json::value* content = logprobs->as_object().if_contains("content")) {
          for (const json::value& token : content->as_array()) {
            joined.logprobs.push_back(token);
          }
        } else {
          for (const json::value& token : logprobs->at("tokens").as_array()) {
            joined.logprobs.push_back(token);
          }
        }
      }
      if (!choice.at("finish_reason").is_null()) {
        joined.finish_reason = std::string(choice.at("finish_reason").as_string());
        joined.matched_stop = choice.at("matched_stop");
      }
    }
  }
  return joined;
}

}  // namespace baleen::server
