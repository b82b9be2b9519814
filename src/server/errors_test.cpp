// Every documented error of the API, over HTTP: status, type, param, and a server that goes on.
#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

struct Fault {
  const char* name;
  const char* path;
  std::string body;
  int status;
  const char* type;
  const char* param;  // nullptr: null
  const char* mentions;
};

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kText = "/v1/completions";

std::string chat(const std::string& fields) {
  return R"({"model": "m", "messages": [{"role": "user", "content": "hi"}], )" + fields + "}";
}
std::string with_messages(const std::string& messages) {
  return R"({"model": "m", "messages": )" + messages + "}";
}
std::string text(const std::string& fields) {
  return R"({"model": "m", "prompt": "hi", )" + fields + "}";
}
std::string tool(const std::string& function) {
  return chat(R"("tools": [{"type": "function", "function": )" + function + "}]");
}

std::vector<Fault> faults() {
  const char* const bad = "invalid_request_error";
  std::vector<Fault> all = {
      {"empty_body", kChat, "", 400, bad, nullptr, "empty"},
      {"not_json", kChat, "{\"model\": }", 400, bad, nullptr, "not valid JSON"},
      {"not_utf8", kChat, "{\"model\": \"\xFF\"}", 400, bad, nullptr, "not valid JSON"},
      {"too_deep",
       kChat,
       "{\"a\": " + std::string(100, '[') + std::string(100, ']') + "}",
       400,
       bad,
       nullptr,
       "nested deeper"},
      {"not_an_object", kText, "[1]", 400, bad, nullptr, "an array"},
      {"no_model", kChat, R"({"messages": []})", 400, bad, "model", "required"},
      {"unknown_model",
       kChat,
       R"({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]})",
       404,
       "not_found_error",
       "model",
       "gpt"},
      {"unknown_model_text",
       kText,
       R"({"model": "gpt", "prompt": "x"})",
       404,
       "not_found_error",
       "model",
       "gpt"},
      {"no_messages", kChat, R"({"model": "m"})", 400, bad, "messages", "required"},
      {"empty_messages", kChat, with_messages("[]"), 400, bad, "messages", "at least one"},
      {"messages_kind", kChat, with_messages("\"hi\""), 400, bad, "messages", "a string"},
      {"message_kind", kChat, with_messages("[3]"), 400, bad, "messages[0]", "an integer"},
      {"no_role",
       kChat,
       with_messages(R"([{"content": "x"}])"),
       400,
       bad,
       "messages[0].role",
       "required"},
      {"role",
       kChat,
       with_messages(R"([{"role": "robot", "content": "x"}])"),
       400,
       bad,
       "messages[0].role",
       "robot"},
      {"no_content",
       kChat,
       with_messages(R"([{"role": "user"}])"),
       400,
       bad,
       "messages[0].content",
       "required"},
      {"content_kind",
       kChat,
       with_messages(R"([{"role": "user", "content": 3}])"),
       400,
       bad,
       "messages[0].content",
       "an integer"},
      {"part_kind",
       kChat,
       with_messages(R"([{"role": "user", "content": ["x"]}])"),
       400,
       bad,
       "messages[0].content[0]",
       "a string"},
      {"part_without_text",
       kChat,
       with_messages(R"([{"role": "user", "content": [{"type": "text"}]}])"),
       400,
       bad,
       "messages[0].content[0].text",
       "required"},
      {"message_field",
       kChat,
       with_messages(R"([{"role": "user", "content": "x", "mood": "good"}])"),
       400,
       bad,
       "messages[0].mood",
       "unknown field"},
      {"message_name",
       kChat,
       with_messages(R"([{"role": "user", "content": "x", "name": "n"}])"),
       400,
       bad,
       "messages[0].name",
       "not supported"},
      {"assistant_without_content",
       kChat,
       with_messages(R"([{"role": "user", "content": "x"}, {"role": "assistant"}])"),
       400,
       bad,
       "messages[1].content",
       "required"},
      {"call_kind",
       kChat,
       with_messages(
           R"([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [1]}])"),
       400,
       bad,
       "messages[1].tool_calls[0]",
       "an integer"},
      {"call_name",
       kChat,
       with_messages(
           R"([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"arguments": "{}"}}]}])"),
       400,
       bad,
       "messages[1].tool_calls[0].function.name",
       "required"},
      {"trailing_assistant",
       kChat,
       with_messages(
           R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])"),
       400,
       bad,
       "messages[1]",
       "messages[1]"},
      {"unknown_field", kChat, chat(R"("frobnicate": 1)"), 400, bad, "frobnicate", "unknown field"},
      {"unknown_field_text",
       kText,
       text(R"("messages": [])"),
       400,
       bad,
       "messages",
       "unknown field"},
      {"temperature", kChat, chat(R"("temperature": -1)"), 400, bad, "temperature", "-1"},
      {"temperature_kind",
       kChat,
       chat(R"("temperature": "hot")"),
       400,
       bad,
       "temperature",
       "a string"},
      {"temperature_huge", kChat, chat(R"("temperature": 1e300)"), 400, bad, "temperature", ""},
      {"top_p_zero", kChat, chat(R"("top_p": 0)"), 400, bad, "top_p", "(0, 1]"},
      {"top_p_large", kText, text(R"("top_p": 1.1)"), 400, bad, "top_p", "(0, 1]"},
      {"top_k", kChat, chat(R"("top_k": 0)"), 400, bad, "top_k", "top_k"},
      {"top_k_low", kChat, chat(R"("top_k": -2)"), 400, bad, "top_k", "-1"},
      {"min_p", kChat, chat(R"("min_p": 1.5)"), 400, bad, "min_p", "[0, 1]"},
      {"frequency_penalty",
       kChat,
       chat(R"("frequency_penalty": 2.1)"),
       400,
       bad,
       "frequency_penalty",
       "[-2, 2]"},
      {"presence_penalty",
       kChat,
       chat(R"("presence_penalty": -2.1)"),
       400,
       bad,
       "presence_penalty",
       "[-2, 2]"},
      {"repetition_penalty",
       kChat,
       chat(R"("repetition_penalty": 0)"),
       400,
       bad,
       "repetition_penalty",
       "(0, 2]"},
      {"n_zero", kChat, chat(R"("n": 0)"), 400, bad, "n", "1 .. 128"},
      {"n_many", kChat, chat(R"("n": 129)"), 400, bad, "n", "1 .. 128"},
      {"n_times_prompts",
       kText,
       R"({"model": "m", "prompt": ["a", "b"], "n": 65})",
       400,
       bad,
       "n",
       "130"},
      {"seed", kChat, chat(R"("seed": 1.5)"), 400, bad, "seed", "an integer"},
      {"bias_key", kChat, chat(R"("logit_bias": {"x": 1})"), 400, bad, "logit_bias", "\"x\""},
      {"bias_value",
       kChat,
       chat(R"("logit_bias": {"3": 101})"),
       400,
       bad,
       "logit_bias.3",
       "-100 .. 100"},
      {"bias_kind",
       kChat,
       chat(R"("logit_bias": {"3": "a"})"),
       400,
       bad,
       "logit_bias.3",
       "a string"},
      {"bias_vocabulary",
       kChat,
       chat(R"("logit_bias": {"999999": 1})"),
       400,
       bad,
       "logit_bias",
       "999999"},
      {"stop_empty", kChat, chat(R"("stop": "")"), 400, bad, "stop", "empty"},
      {"stop_kind", kChat, chat(R"("stop": [1])"), 400, bad, "stop[0]", "an integer"},
      {"stop_many",
       kChat,
       chat(R"("stop": ["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])"),
       400,
       bad,
       "stop",
       "at most 16"},
      {"stop_token",
       kChat,
       chat(R"("stop_token_ids": [999999])"),
       400,
       bad,
       "stop_token_ids",
       "999999"},
      {"stop_token_negative",
       kChat,
       chat(R"("stop_token_ids": [-1])"),
       400,
       bad,
       "stop_token_ids[0]",
       "-1"},
      {"stream_options",
       kChat,
       chat(R"("stream_options": {"include_usage": true})"),
       400,
       bad,
       "stream_options",
       "stream: true"},
      {"stream_option",
       kChat,
       chat(R"("stream": true, "stream_options": {"x": 1})"),
       400,
       bad,
       "stream_options.x",
       "unknown field"},
      {"top_logprobs_alone",
       kChat,
       chat(R"("top_logprobs": 2)"),
       400,
       bad,
       "top_logprobs",
       "logprobs: true"},
      {"top_logprobs_many",
       kChat,
       chat(R"("logprobs": true, "top_logprobs": 21)"),
       400,
       bad,
       "top_logprobs",
       "0 .. 20"},
      {"logprobs_kind", kChat, chat(R"("logprobs": 3)"), 400, bad, "logprobs", "a boolean"},
      {"logprobs_many", kText, text(R"("logprobs": 21)"), 400, bad, "logprobs", "0 .. 20"},
      {"max_tokens", kChat, chat(R"("max_tokens": 0)"), 400, bad, "max_tokens", "is 0"},
      {"max_tokens_twice",
       kChat,
       chat(R"("max_tokens": 5, "max_completion_tokens": 6)"),
       400,
       bad,
       "max_tokens",
       "contradicts"},
      {"min_tokens",
       kChat,
       chat(R"("max_tokens": 5, "min_tokens": 6)"),
       400,
       bad,
       "min_tokens",
       "6"},
      {"store", kChat, chat(R"("store": true)"), 400, bad, "store", "accepted: false"},
      {"service_tier", kChat, chat(R"("service_tier": "flex")"), 400, bad, "service_tier", "auto"},
      {"response_format",
       kChat,
       chat(R"("response_format": {"type": "json_object"})"),
       400,
       bad,
       "response_format.type",
       "accepted: \"text\""},
      {"response_format_field",
       kChat,
       chat(R"("response_format": {"type": "text", "x": 1})"),
       400,
       bad,
       "response_format.x",
       "unknown field"},
      {"tool_choice",
       kChat,
       chat(R"("tool_choice": "required")"),
       400,
       bad,
       "tool_choice",
       "accepted: \"auto\", \"none\""},
      {"tool_choice_named",
       kChat,
       chat(R"("tool_choice": {"type": "function", "function": {"name": "f"}})"),
       400,
       bad,
       "tool_choice",
       "not supported"},
      {"parallel",
       kChat,
       chat(R"("parallel_tool_calls": false)"),
       400,
       bad,
       "parallel_tool_calls",
       "accepted: true"},
      {"tool_kind", kChat, chat(R"("tools": [1])"), 400, bad, "tools[0]", "an integer"},
      {"tool_type",
       kChat,
       chat(R"("tools": [{"type": "retrieval", "function": {"name": "f"}}])"),
       400,
       bad,
       "tools[0].type",
       "accepted: \"function\""},
      {"tool_name",
       kChat,
       tool(R"({"name": "a b"})"),
       400,
       bad,
       "tools[0].function.name",
       "letters"},
      {"tool_no_name", kChat, tool(R"({})"), 400, bad, "tools[0].function.name", "required"},
      {"tool_twice",
       kChat,
       chat(
           R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}])"),
       400,
       bad,
       "tools[1].function.name",
       "twice"},
      {"tool_parameters",
       kChat,
       tool(R"({"name": "f", "parameters": 3})"),
       400,
       bad,
       "tools[0].function.parameters",
       "an integer"},
      {"tool_strict",
       kChat,
       tool(R"({"name": "f", "strict": true})"),
       400,
       bad,
       "tools[0].function.strict",
       "accepted: false"},
      {"tool_field",
       kChat,
       tool(R"({"name": "f", "x": 1})"),
       400,
       bad,
       "tools[0].function.x",
       "unknown field"},
      {"effort",
       kChat,
       chat(R"("reasoning_effort": "colossal")"),
       400,
       bad,
       "reasoning_effort",
       "must be one of"},
      {"effort_kind",
       kChat,
       chat(R"("reasoning_effort": [])"),
       400,
       bad,
       "reasoning_effort",
       "an array"},
      {"thinking_type",
       kChat,
       chat(R"("thinking": {"type": "maybe"})"),
       400,
       bad,
       "thinking.type",
       "must be one of"},
      {"thinking_no_type",
       kChat,
       chat(R"("thinking": {"budget_tokens": 3})"),
       400,
       bad,
       "thinking.type",
       "required"},
      {"thinking_budget",
       kChat,
       chat(R"("thinking": {"type": "enabled", "budget_tokens": 0})"),
       400,
       bad,
       "thinking.budget_tokens",
       "is 0"},
      {"kwargs",
       kChat,
       chat(R"("chat_template_kwargs": {"x": 1})"),
       400,
       bad,
       "chat_template_kwargs.x",
       "unknown field"},
      {"kwargs_kind",
       kChat,
       chat(R"("chat_template_kwargs": {"thinking": 1})"),
       400,
       bad,
       "chat_template_kwargs.thinking",
       "a boolean"},
      {"special_tokens",
       kChat,
       chat(R"("skip_special_tokens": false)"),
       400,
       bad,
       "skip_special_tokens",
       "accepted: true"},
      {"echo", kText, text(R"("echo": true)"), 400, bad, "echo", "accepted: false"},
      {"suffix", kText, text(R"("suffix": "x")"), 400, bad, "suffix", "not supported"},
      {"best_of", kText, text(R"("best_of": 3, "n": 2)"), 400, bad, "best_of", "accepted: n, 2"},
      {"no_prompt", kText, R"({"model": "m"})", 400, bad, "prompt", "required"},
      {"prompt_kind", kText, R"({"model": "m", "prompt": 3})", 400, bad, "prompt", "an integer"},
      {"prompt_empty",
       kText,
       R"({"model": "m", "prompt": ""})",
       400,
       bad,
       "prompt",
       "at least one token"},
      {"prompt_empty_list",
       kText,
       R"({"model": "m", "prompt": []})",
       400,
       bad,
       "prompt",
       "an empty array"},
      {"prompt_mixed",
       kText,
       R"({"model": "m", "prompt": ["a", 1]})",
       400,
       bad,
       "prompt[1]",
       "an integer"},
      {"prompt_id",
       kText,
       R"({"model": "m", "prompt": [999999]})",
       400,
       bad,
       "prompt[0]",
       "999999"},
      {"prompt_id_in_list",
       kText,
       R"({"model": "m", "prompt": [[1], [-2]]})",
       400,
       bad,
       "prompt[1][0]",
       "-2"},
  };
  for (const char* field : {"regex",
                            "ebnf",
                            "stop_regex",
                            "return_hidden_states",
                            "return_routed_experts",
                            "return_indexer_topk",
                            "return_cached_tokens_details",
                            "return_token_ids",
                            "return_meta_info",
                            "rid",
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
    all.push_back({field,
                   kChat,
                   chat("\"" + std::string(field) + "\": 1"),
                   400,
                   bad,
                   field,
                   "not supported"});
  }
  return all;
}

class ApiFaultTest : public testing::Test {};

TEST_F(ApiFaultTest, EachIsAnsweredInFormAndTheServerGoesOn) {
  ScriptedApi api;
  api.emit("fine");
  http::Client client = api.client();
  for (const Fault& fault : faults()) {
    SCOPED_TRACE(fault.name);
    const Result<http::Response> answer = client.post(fault.path, fault.body);
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
    EXPECT_NE(error->at("message").as_string().find(fault.mentions), std::string::npos)
        << answer->body;
  }
  EXPECT_EQ(client.post(kChat, chat(R"("max_tokens": 9)"))->status, 200);
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
      api.post(kText, text("\"max_tokens\": " + std::to_string(32 - prompt)));
  EXPECT_EQ(fits.status, 200) << fits.body;
  const http::Response over =
      api.post(kText, text("\"max_tokens\": " + std::to_string(33 - prompt)));
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
  const http::Response rest = api.post(kChat, chat(R"("n": 1)"));
  EXPECT_EQ(rest.status, 200) << rest.body;
  const json::value body = json::parse(rest.body);
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(body.at("usage").at("total_tokens"), 32);
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
      api.post(kChat, chat("\"user\": \"" + std::string(1000, 'x') + "\""));
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
  const http::Response refused = *stranger.post(kChat, chat(R"("n": 1)"));
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(json::parse(refused.body).at("error").at("type"), "authentication_error");
  http::Client friendly(api.server->url(), {.headers = {{"Authorization", "Bearer sesame"}}});
  EXPECT_EQ(friendly.post(kChat, chat(R"("n": 1)"))->status, 200);
  EXPECT_EQ(friendly.get("/v1/models")->status, 200);
}

}  // namespace
}  // namespace baleen::server
