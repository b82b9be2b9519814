// Every documented error of the API, over HTTP: status, type, param, and a server that goes on.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kText = "/v1/completions";

struct Call {
  const char* path;
  std::string body;
};

struct Fault {
  Call call;
  const char* param;  // nullptr: null
  const char* mentions;
  int status = 400;
  const char* type = "invalid_request_error";
};

Call raw_chat(std::string body) {
  return {kChat, std::move(body)};
}
Call raw_text(std::string body) {
  return {kText, std::move(body)};
}
Call chat(const std::string& fields) {
  return raw_chat(R"({"model": "m", "messages": [{"role": "user", "content": "hi"}], )" + fields +
                  "}");
}
Call with_messages(const std::string& messages) {
  return raw_chat(R"({"model": "m", "messages": )" + messages + "}");
}
Call text(const std::string& fields) {
  return raw_text(R"({"model": "m", "prompt": "hi", )" + fields + "}");
}
Call tool(const std::string& function) {
  return chat(R"("tools": [{"type": "function", "function": )" + function + "}]");
}

std::vector<Fault> faults() {
  std::vector<Fault> all = {
      {raw_chat(""), nullptr, "empty"},
      {raw_chat("{\"model\": }"), nullptr, "not valid JSON"},
      {raw_chat("{\"model\": \"\xFF\"}"), nullptr, "not valid JSON"},
      {raw_chat("{\"a\": " + std::string(100, '[') + std::string(100, ']') + "}"),
       nullptr,
       "nested deeper"},
      {raw_text("[1]"), nullptr, "an array"},
      {raw_chat(R"({"messages": []})"), "model", "required"},
      {raw_chat(R"({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]})"),
       "model",
       "gpt",
       404,
       "not_found_error"},
      {raw_text(R"({"model": "gpt", "prompt": "x"})"), "model", "gpt", 404, "not_found_error"},
      {raw_chat(R"({"model": "m"})"), "messages", "required"},
      {with_messages("[]"), "messages", "at least one"},
      {with_messages("\"hi\""), "messages", "a string"},
      {with_messages("[3]"), "messages[0]", "an integer"},
      {with_messages(R"([{"content": "x"}])"), "messages[0].role", "required"},
      {with_messages(R"([{"role": "robot", "content": "x"}])"), "messages[0].role", "robot"},
      {with_messages(R"([{"role": "user"}])"), "messages[0].content", "required"},
      {with_messages(R"([{"role": "user", "content": 3}])"), "messages[0].content", "an integer"},
      {with_messages(R"([{"role": "user", "content": ["x"]}])"),
       "messages[0].content[0]",
       "a string"},
      {with_messages(R"([{"role": "user", "content": [{"type": "text"}]}])"),
       "messages[0].content[0].text",
       "required"},
      {with_messages(R"([{"role": "user", "content": "x", "mood": "good"}])"),
       "messages[0].mood",
       "unknown field"},
      {with_messages(R"([{"role": "user", "content": "x", "name": "n"}])"),
       "messages[0].name",
       "not supported"},
      {with_messages(R"([{"role": "user", "content": "x"}, {"role": "assistant"}])"),
       "messages[1].content",
       "required"},
      {with_messages(
           R"([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [1]}])"),
       "messages[1].tool_calls[0]",
       "an integer"},
      {with_messages(
           R"([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"arguments": "{}"}}]}])"),
       "messages[1].tool_calls[0].function.name",
       "required"},
      {with_messages(
           R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])"),
       "messages[1]",
       "messages[1]"},
      {chat(R"("frobnicate": 1)"), "frobnicate", "unknown field"},
      {text(R"("messages": [])"), "messages", "unknown field"},
      {chat(R"("temperature": -1)"), "temperature", "-1"},
      {chat(R"("temperature": "hot")"), "temperature", "a string"},
      {chat(R"("top_p": 0)"), "top_p", "(0, 1]"},
      {text(R"("top_p": 1.1)"), "top_p", "(0, 1]"},
      {chat(R"("top_p": 1e300)"), "top_p", "1e+300"},
      {chat(R"("temperature": 1e300)"), "temperature", "1e+300"},
      {chat(R"("temperature": -1e300)"), "temperature", "-1e+300"},
      {chat(R"("min_p": 1e39)"), "min_p", "1e+39"},
      {chat(R"("min_p": -1e-300)"), "min_p", "[0, 1]"},
      {chat(R"("frequency_penalty": 1e300)"), "frequency_penalty", "1e+300"},
      {chat(R"("presence_penalty": 1e300)"), "presence_penalty", "1e+300"},
      {chat(R"("repetition_penalty": 1e300)"), "repetition_penalty", "1e+300"},
      {chat(R"("top_k": 0)"), "top_k", "top_k"},
      {chat(R"("top_k": -2)"), "top_k", "-1"},
      {chat(R"("min_p": 1.5)"), "min_p", "[0, 1]"},
      {chat(R"("frequency_penalty": 2.1)"), "frequency_penalty", "[-2, 2]"},
      {chat(R"("presence_penalty": -2.1)"), "presence_penalty", "[-2, 2]"},
      {chat(R"("repetition_penalty": 0)"), "repetition_penalty", "(0, 2]"},
      {chat(R"("n": 0)"), "n", "1 .. 128"},
      {chat(R"("n": 129)"), "n", "1 .. 128"},
      {raw_text(R"({"model": "m", "prompt": ["a", "b"], "n": 65})"), "n", "130"},
      {chat(R"("seed": 1.5)"), "seed", "an integer"},
      {chat(R"("logit_bias": {"x": 1})"), "logit_bias", "\"x\""},
      {chat(R"("logit_bias": {"5": 1, "05": 1})"), "logit_bias", "\"05\""},
      {chat(R"("logit_bias": {"00": 1})"), "logit_bias", "\"00\""},
      {chat(R"("logit_bias": {"+5": 1})"), "logit_bias", "\"+5\""},
      {chat(R"("logit_bias": {"": 1})"), "logit_bias", "\"\""},
      {chat(R"("logit_bias": {"3": 101})"), "logit_bias.3", "-100 .. 100"},
      {chat(R"("logit_bias": {"3": "a"})"), "logit_bias.3", "a string"},
      {chat(R"("logit_bias": {"999999": 1})"), "logit_bias", "999999"},
      {chat(R"("stop": "")"), "stop", "empty"},
      {chat(R"("stop": [1])"), "stop[0]", "an integer"},
      {chat(R"("stop": ["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])"),
       "stop",
       "at most 16"},
      {chat(R"("stop_token_ids": [999999])"), "stop_token_ids", "999999"},
      {chat(R"("stop_token_ids": [-1])"), "stop_token_ids[0]", "-1"},
      {chat(R"("stream_options": {"include_usage": true})"), "stream_options", "stream: true"},
      {chat(R"("stream": true, "stream_options": {"x": 1})"), "stream_options.x", "unknown field"},
      {chat(R"("top_logprobs": 2)"), "top_logprobs", "logprobs: true"},
      {chat(R"("logprobs": true, "top_logprobs": 21)"), "top_logprobs", "0 .. 20"},
      {chat(R"("logprobs": 3)"), "logprobs", "a boolean"},
      {text(R"("logprobs": 21)"), "logprobs", "0 .. 20"},
      {chat(R"("max_tokens": 0)"), "max_tokens", "is 0"},
      {chat(R"("max_tokens": 5, "max_completion_tokens": 6)"), "max_tokens", "contradicts"},
      {chat(R"("max_tokens": 5, "min_tokens": 6)"),
       "min_tokens",
       "min_tokens must be in [0, max_tokens = 5]"},
      {chat(R"("max_completion_tokens": 5, "min_tokens": 6)"),
       "min_tokens",
       "max_completion_tokens = 5"},
      {text(R"("max_tokens": 5, "min_tokens": 6)"), "min_tokens", "max_tokens = 5"},
      {chat(R"("store": true)"), "store", "accepted: false"},
      {chat(R"("service_tier": "flex")"), "service_tier", "auto"},
      {chat(R"("response_format": {"type": "yaml"})"), "response_format.type", "json_schema"},
      {chat(R"("response_format": {"type": "text", "x": 1})"),
       "response_format.x",
       "unknown field"},
      {chat(R"("tool_choice": "required")"), "tool_choice", "needs tools"},
      {chat(R"("tool_choice": {"type": "function", "function": {"name": "f"}})"),
       "tool_choice",
       "not among the tools"},
      {chat(R"("parallel_tool_calls": 0)"), "parallel_tool_calls", "an integer"},
      {chat(R"("tools": [1])"), "tools[0]", "an integer"},
      {chat(R"("tools": [{"type": "retrieval", "function": {"name": "f"}}])"),
       "tools[0].type",
       "accepted: \"function\""},
      {tool(R"({"name": "a b"})"), "tools[0].function.name", "letters"},
      {tool(R"({})"), "tools[0].function.name", "required"},
      {chat(
           R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}])"),
       "tools[1].function.name",
       "twice"},
      {tool(R"({"name": "f", "parameters": 3})"), "tools[0].function.parameters", "an integer"},
      {tool(R"({"name": "f", "strict": 1})"), "tools[0].function.strict", "an integer"},
      {tool(R"({"name": "f", "x": 1})"), "tools[0].function.x", "unknown field"},
      {chat(R"("reasoning_effort": "colossal")"), "reasoning_effort", "must be one of"},
      {chat(R"("reasoning_effort": [])"), "reasoning_effort", "an array"},
      {chat(R"("thinking": {"type": "maybe"})"), "thinking.type", "must be one of"},
      {chat(R"("thinking": {"budget_tokens": 3})"), "thinking.type", "required"},
      {chat(R"("thinking": {"type": "enabled", "budget_tokens": 0})"),
       "thinking.budget_tokens",
       "is 0"},
      {chat(R"("chat_template_kwargs": {"x": 1})"), "chat_template_kwargs.x", "unknown field"},
      {chat(R"("chat_template_kwargs": {"thinking": 1})"),
       "chat_template_kwargs.thinking",
       "a boolean"},
      {chat(R"("skip_special_tokens": false)"), "skip_special_tokens", "accepted: true"},
      {text(R"("echo": true)"), "echo", "accepted: false"},
      {text(R"("suffix": "x")"), "suffix", "not supported"},
      {text(R"("best_of": 3, "n": 2)"), "best_of", "accepted: n, 2"},
      {raw_text(R"({"model": "m"})"), "prompt", "required"},
      {raw_text(R"({"model": "m", "prompt": 3})"), "prompt", "an integer"},
      {raw_text(R"({"model": "m", "prompt": ""})"), "prompt", "at least one token"},
      {raw_text(R"({"model": "m", "prompt": [""]})"), "prompt[0]", "at least one token"},
      {raw_text(R"({"model": "m", "prompt": ["a", ""]})"), "prompt[1]", "at least one token"},
      {raw_text(R"({"model": "m", "prompt": [[]]})"), "prompt[0]", "at least one token"},
      {raw_text(R"({"model": "m", "prompt": []})"), "prompt", "an empty array"},
      {raw_text(R"({"model": "m", "prompt": ["a", 1]})"), "prompt[1]", "an integer"},
      {raw_text(R"({"model": "m", "prompt": [999999]})"), "prompt[0]", "999999"},
      {raw_text(R"({"model": "m", "prompt": [[1], [-2]]})"), "prompt[1][0]", "-2"},
  };
  for (const char* field : {"stop_regex",
                            "return_hidden_states",
                            "return_routed_experts",
                            "return_indexer_topk",
                            "return_cached_tokens_details",
                            "return_token_ids",
                            "return_meta_info",
                            "extra_key",
                            "cache_salt",
                            "priority",
                            "session_params",
                            "bootstrap_host",
                            "bootstrap_port",
                            "bootstrap_room",
                            "data_parallel_rank",
                            "routed_dp_rank",
                            "custom_logit_processor",
                            "custom_params",
                            "task",
                            "input_ids"}) {
    all.push_back({chat("\"" + std::string(field) + "\": 1"), field, "not supported"});
  }
  return all;
}

class ApiFaultTest : public testing::Test {};

TEST_F(ApiFaultTest, EachIsAnsweredInFormAndTheServerGoesOn) {
  ScriptedApi api;
  api.emit("fine");
  http::Client client = api.client();
  for (const Fault& fault : faults()) {
    SCOPED_TRACE(fault.call.body);
    const Result<http::Response> answer = client.post(fault.call.path, fault.call.body);
    ASSERT_TRUE(answer.ok()) << answer.status().message;
    EXPECT_EQ(answer->status, fault.status) << answer->body;
    const json::value body = json::parse(answer->body);
    const json::object* error = body.as_object().at("error").if_object();
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->at("type").as_string(), fault.type);
    if (fault.param == nullptr) {
      EXPECT_TRUE(error->at("param").is_null()) << answer->body;
    } else {
      EXPECT_EQ(error->at("param"), fault.param) << answer->body;
    }
    const std::string_view message = error->at("message").as_string();
    EXPECT_NE(message.find(fault.mentions), std::string::npos) << answer->body;
    EXPECT_EQ(message.find("_new_tokens"), std::string::npos) << "an engine's name: " << message;
    EXPECT_EQ(message.find("is inf"), std::string::npos) << "not what was sent: " << message;
    EXPECT_EQ(message.find("is -inf"), std::string::npos) << "not what was sent: " << message;
  }
  for (const char* good : {R"("max_tokens": 9)",
                           R"("max_tokens": 9, "top_p": 1e-300, "temperature": 1e-300)",
                           R"("max_tokens": 9, "logit_bias": {"0": 1, "5": -1})"}) {
    const http::Response answer = *client.post(kChat, chat(good).body);
    EXPECT_EQ(answer.status, 200) << answer.body;
  }
  EXPECT_TRUE(api.idle_soon());
}

TEST_F(ApiFaultTest, PromptAndAnswerBeyondTheContext) {
  ScriptedApiOptions options;
  options.max_context = 32;
  ScriptedApi api(options);
  api.emit("x", engine::ScriptEnd::kRepeat);
  const auto prompt = static_cast<int64_t>(api.tokenizer->encode("hi").size());
  const auto code = [](const http::Response& response) {
    return json::parse(response.body).at("error").at("code");
  };
  const http::Response fits =
      api.post(kText, text("\"max_tokens\": " + std::to_string(32 - prompt)).body);
  EXPECT_EQ(fits.status, 200) << fits.body;
  const http::Response over =
      api.post(kText, text("\"max_tokens\": " + std::to_string(33 - prompt)).body);
  EXPECT_EQ(over.status, 400);
  EXPECT_EQ(code(over), "context_length_exceeded");
  std::string ids = "1";
  for (int i = 1; i < 32; ++i) {
    ids += ",1";
  }
  const http::Response full = api.post(kText, R"({"model": "m", "prompt": [)" + ids + "]}");
  EXPECT_EQ(full.status, 400);
  EXPECT_EQ(code(full), "context_length_exceeded");
  // Without a limit of its own a chat answer may fill what is left.
  const http::Response rest = api.post(kChat, chat(R"("n": 1)").body);
  EXPECT_EQ(rest.status, 200) << rest.body;
  const json::value body = json::parse(rest.body);
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(body.at("usage").at("total_tokens"), 32);
}

TEST_F(ApiFaultTest, LongTextOfTheClientIsNotRepeatedWhole) {
  ScriptedApi api;
  std::string long_text;
  while (long_text.size() < 100'000) {
    long_text += "x\u00E9";  // whatever the cut, it must not fall inside a character
  }
  const std::string quoted = "\"" + long_text + "\"";
  const std::vector<Call> calls = {
      chat(quoted + ": 1"),
      text(quoted + ": 1"),
      raw_text(R"({"model": "m", "prompt": ["a", )" + quoted + R"(], "suffix": )" + quoted + "}"),
      raw_chat(R"({"messages": [], "model": )" + quoted + "}"),
      with_messages(R"([{"role": )" + quoted + R"(, "content": "x"}])"),
      with_messages(R"([{"role": "user", "content": "x", )" + quoted + ": 1}]"),
      with_messages(R"([{"role": "user", "content": [{"type": )" + quoted + "}]}]"),
      chat("\"logit_bias\": {" + quoted + ": 1}"),
      chat("\"service_tier\": " + quoted),
      chat("\"store\": " + quoted),
      chat("\"response_format\": {\"type\": " + quoted + "}"),
      chat("\"tool_choice\": " + quoted),
      chat("\"tool_choice\": {" + quoted + ": 1}"),
      chat("\"reasoning_effort\": " + quoted),
      chat("\"thinking\": {\"type\": " + quoted + "}"),
      chat("\"chat_template_kwargs\": {" + quoted + ": 1}"),
      tool(R"({"name": )" + quoted + "}"),
      tool(R"({"name": "f", )" + quoted + ": 1}"),
  };
  for (const Call& call : calls) {
    const http::Response answer = api.post(call.path, call.body);
    EXPECT_GE(answer.status, 400);
    EXPECT_LT(answer.status, 500);
    EXPECT_LE(answer.body.size(), 2000U) << answer.body.substr(0, 300);
    EXPECT_TRUE(json::parse(answer.body).as_object().contains("error"));  // and is UTF-8
  }
  const http::Response key = api.post(kChat, chat(quoted + ": 1").body);
  EXPECT_NE(key.body.find("...: unknown field"), std::string::npos) << key.body;
  http::Client client = api.client();
  EXPECT_LE(client.get("/" + std::string(20'000, 'x'))->body.size(), 2000U);
}

TEST_F(ApiFaultTest, CodedBodiesAre415InForm) {
  ScriptedApi api;
  http::Client client(api.server->url(), {.headers = {{"Content-Encoding", "gzip"}}});
  const http::Response answer = *client.post(kChat, chat(R"("n": 1)").body);
  EXPECT_EQ(answer.status, 415);
  EXPECT_EQ(json::parse(answer.body).at("error").at("type"), "invalid_request_error");
}

TEST_F(ApiFaultTest, PathsMethodsAndModels) {
  ScriptedApi api;
  http::Client client = api.client();
  const auto error_of = [](const http::Response& response) {
    return json::parse(response.body).at("error").as_object();
  };
  const http::Response missing = *client.get("/v1/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(error_of(missing).at("type"), "not_found_error");
  const http::Response method = *client.get(kChat);
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(*method.headers.find("Allow"), "POST");
  EXPECT_EQ(error_of(method).at("type"), "invalid_request_error");
  EXPECT_EQ(client.get("/v1/models/gpt")->status, 404);
  EXPECT_EQ(client.get("/v1/models/m")->status, 200);
  EXPECT_EQ(client.post("/health", "")->status, 405);
}

TEST_F(ApiFaultTest, BodyOverTheLimitIs413InForm) {
  ScriptedApiOptions options;
  options.server.http.max_body_bytes = 1000;
  ScriptedApi api(options);
  const http::Response answer =
      api.post(kChat, chat("\"user\": \"" + std::string(1000, 'x') + "\"").body);
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(json::parse(answer.body).at("error").at("type"), "request_too_large");
}

TEST_F(ApiFaultTest, KeyIsAskedForExceptByHealth) {
  ScriptedApiOptions options;
  options.server.api_key = "sesame";
  ScriptedApi api(options);
  api.emit("x");
  http::Client stranger = api.client();
  EXPECT_EQ(stranger.get("/health")->status, 200);
  for (const char* path : {"/v1/models", "/v1/models/m", "/metrics"}) {
    EXPECT_EQ(stranger.get(path)->status, 401) << path;
  }
  const http::Response refused = *stranger.post(kChat, chat(R"("n": 1)").body);
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(json::parse(refused.body).at("error").at("type"), "authentication_error");
  http::Client friendly(api.server->url(), {.headers = {{"Authorization", "Bearer sesame"}}});
  EXPECT_EQ(friendly.post(kChat, chat(R"("n": 1)").body)->status, 200);
  EXPECT_EQ(friendly.get("/v1/models")->status, 200);
}

}  // namespace
}  // namespace baleen::server
