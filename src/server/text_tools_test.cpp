// Tokenizer, prompt and parser paths over HTTP.
#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

std::string ids_of(const std::vector<int32_t>& ids) {
  return json::serialize(json::array(ids.begin(), ids.end()));
}

TEST(TextToolsTest, TokenizesTextsAndBack) {
  ScriptedApi api;
  const std::string text = "Hello<｜User｜>, 世界";
  const std::vector<int32_t> ids = api.tokenizer->encode(text);
  for (const char* path : {"/tokenize", "/v1/tokenize"}) {
    const json::value body = api.ok(path, json::serialize(json::object{{"prompt", text}}));
    EXPECT_EQ(json::serialize(body.at("tokens")), ids_of(ids));
    EXPECT_EQ(body.at("count").as_int64(), static_cast<int64_t>(ids.size()));
    EXPECT_EQ(body.at("max_model_len").as_int64(), 4096);
  }
  const json::value list = api.ok("/tokenize", R"({"prompt": ["a", ""], "model": "m"})");
  EXPECT_EQ(list.at("tokens").as_array().size(), 2U);
  EXPECT_EQ(list.at("count").at(1).as_int64(), 0);
  for (const char* path : {"/detokenize", "/v1/detokenize"}) {
    const json::value back = api.ok(path, R"({"tokens": )" + ids_of(ids) + "}");
    EXPECT_EQ(std::string(back.at("text").as_string()), text);
    EXPECT_EQ(back.at("prompt"), back.at("text"));
  }
  const std::string eos = ids_of({api.tokenizer->eos_id()});
  EXPECT_EQ(api.ok("/detokenize", R"({"tokens": )" + eos + "}").at("text"), "");
  EXPECT_EQ(api.ok("/detokenize", R"({"tokens": )" + eos + R"(, "skip_special_tokens": false})")
                .at("text"),
            "<｜end▁of▁sentence｜>");
}

TEST(TextToolsTest, RendersWhatAChatRequestWouldRun) {
  ScriptedApi api;
  api.emit("x");
  const std::string fields =
      R"("messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "enabled"})";
  api.ok(kChatPath, R"({"model": "m", )" + fields + "}");
  const json::value rendered = api.ok("/v1/chat/completions/render", "{" + fields + "}");
  EXPECT_EQ(std::string(rendered.at("prompt").as_string()), api.last_prompt_text());
  EXPECT_EQ(json::serialize(rendered.at("tokens")), ids_of(api.last_prompt()));
  EXPECT_EQ(rendered.at("starts_in_reasoning"), true);
  const json::value tokens = api.ok("/tokenize", "{" + fields + "}");
  EXPECT_EQ(tokens.at("tokens"), rendered.at("tokens"));
}

TEST(TextToolsTest, ParsesModelOutput) {
  ScriptedApi api;
  const json::value parts =
      api.ok("/separate_reasoning",
             R"({"text": "<think>Add.</think>Four.", "reasoning_parser": "deepseek-v4"})");
  EXPECT_EQ(parts.at("reasoning_text"), "Add.");
  EXPECT_EQ(parts.at("text"), "Four.");
  const std::string call =
      "Now.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" "
      "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  json::object request{{"text", call}, {"tool_call_parser", "deepseekv4"}};
  request["tools"] = json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  const json::value calls = api.ok("/parse_function_call", json::serialize(request));
  EXPECT_EQ(calls.at("normal_text"), "Now.");
  EXPECT_EQ(calls.at("calls").at(0).at("name"), "f");
  EXPECT_EQ(calls.at("calls").at(0).at("parameters"), R"({"n": 1})");
}

TEST(TextToolsTest, FaultsNameTheirField) {
  ScriptedApi api;
  const auto refused = [&](const char* path, const char* body, const char* param, int status) {
    const http::Response answer = api.post(path, body);
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_EQ(json::parse(answer.body).at("error").at("param"), param) << answer.body;
  };
  refused("/tokenize", "{}", "prompt", 400);
  refused("/tokenize", R"({"prompt": 5})", "prompt", 400);
  refused("/tokenize", R"({"prompt": "a", "x": 1})", "x", 400);
  refused("/tokenize", R"({"prompt": "a", "model": "other"})", "model", 404);
  refused("/tokenize", R"({"messages": []})", "messages", 400);
  refused("/detokenize", "{}", "tokens", 400);
  refused("/detokenize", R"({"tokens": [-1]})", "tokens[0]", 400);
  refused("/parse_function_call", R"({"text": "a"})", "tools", 400);
  refused("/separate_reasoning", "{}", "text", 400);
  refused("/v1/chat/completions/render", R"({"messages": 1})", "messages", 400);
}

}  // namespace
}  // namespace baleen::server
