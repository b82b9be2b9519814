// POST /v1/messages and count_tokens over HTTP: content blocks, events, tools, history, errors.
#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

constexpr const char* kMessagesPath = "/v1/messages";
constexpr const char* kCountPath = "/v1/messages/count_tokens";
constexpr const char* kAddTool =
    R"("tools": [{"name": "add", "description": "Adds.", "input_schema":
        {"type": "object", "properties": {"a": {"type": "number"}, "s": {"type": "string"}}}}])";
constexpr const char* kThink = R"("thinking": {"type": "enabled", "budget_tokens": 1024})";
constexpr const char* kThinkAndCall =
    "Two calls.</think>Adding.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"add\">\n"
    "<｜DSML｜parameter name=\"a\" string=\"false\">12345678901234567890</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"s\" string=\"true\">é \"q\"</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"add\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

std::string ask(const std::string& fields = "") {
  return R"({"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "hi"}])" +
         (fields.empty() ? std::string("}") : ", " + fields + "}");
}

/// A streamed message put together again, as a client does it.
struct JoinedMessage {
  struct Block {
    std::string type;
    std::string text;  // or thinking, or the input's JSON
    std::string name;
    std::string signature;
    bool stopped = false;
  };
  std::vector<Block> blocks;
  std::string stop_reason;
  json::value stop_sequence;
  json::value usage;
  bool stopped = false;
};

JoinedMessage join_message(const StreamedEvents& events) {
  JoinedMessage joined;
  EXPECT_EQ(events.status, 200) << events.error_body;
  EXPECT_FALSE(events.done) << "this dialect has no [DONE]";
  for (size_t i = 0; i < events.chunks.size(); ++i) {
    const json::object& event = events.chunks[i].as_object();
    const std::string type(event.at("type").as_string());
    EXPECT_EQ(type, events.names[i]);
    EXPECT_FALSE(joined.stopped) << "nothing follows message_stop";
    EXPECT_EQ(type == "message_start", i == 0);
    if (type == "content_block_start") {
      EXPECT_EQ(event.at("index").as_int64(), static_cast<int64_t>(joined.blocks.size()));
      EXPECT_TRUE(joined.blocks.empty() || joined.blocks.back().stopped);
      const json::object& block = event.at("content_block").as_object();
      JoinedMessage::Block& added = joined.blocks.emplace_back();
      added.type = std::string(block.at("type").as_string());
      if (added.type == "tool_use") {
        added.name = std::string(block.at("name").as_string());
        EXPECT_TRUE(block.at("id").as_string().starts_with("toolu_"));
        EXPECT_TRUE(block.at("input").as_object().empty());
      }
    } else if (type == "content_block_delta") {
      JoinedMessage::Block& block = joined.blocks.back();
      EXPECT_FALSE(block.stopped);
      const json::object& delta = event.at("delta").as_object();
      const std::string kind(delta.at("type").as_string());
      const char* field = kind == "text_delta"         ? "text"
                          : kind == "thinking_delta"   ? "thinking"
                          : kind == "input_json_delta" ? "partial_json"
                                                       : "signature";
      (kind == "signature_delta" ? block.signature : block.text) += delta.at(field).as_string();
    } else if (type == "content_block_stop") {
      EXPECT_EQ(event.at("index").as_int64(), static_cast<int64_t>(joined.blocks.size()) - 1);
      joined.blocks.back().stopped = true;
    } else if (type == "message_delta") {
      joined.stop_reason = std::string(event.at("delta").at("stop_reason").as_string());
      joined.stop_sequence = event.at("delta").at("stop_sequence");
      joined.usage = event.at("usage");
    } else if (type == "message_stop") {
      joined.stopped = true;
    }
  }
  return joined;
}

TEST(MessagesTest, AnswersWithContentBlocks) {
  ScriptedApi api;
  api.emit("Hello there.");
  const json::value body = api.ok(kMessagesPath, ask());
  EXPECT_TRUE(body.at("id").as_string().starts_with("msg_"));
  EXPECT_EQ(body.at("type"), "message");
  EXPECT_EQ(body.at("role"), "assistant");
  EXPECT_EQ(body.at("model"), "m");
  EXPECT_EQ(body.at("content"), json::parse(R"([{"type": "text", "text": "Hello there."}])"));
  EXPECT_EQ(body.at("stop_reason"), "end_turn");
  EXPECT_TRUE(body.at("stop_sequence").is_null());
  EXPECT_EQ(api.last_prompt_text(), "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>");
  const json::value& usage = body.at("usage");
  EXPECT_EQ(usage.at("input_tokens").as_int64() + usage.at("cache_read_input_tokens").as_int64(),
            static_cast<int64_t>(api.last_prompt().size()));
  EXPECT_GT(usage.at("output_tokens").as_int64(), 0);
}

TEST(MessagesTest, ThinkingAndCallsAreBlocksOfTheirOwn) {
  ScriptedApi api;
  api.emit(kThinkAndCall);
  const std::string request = ask(std::string(kThink) + ", " + kAddTool);
  const http::Response answer = api.post(kMessagesPath, request);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json::value body = json::parse(answer.body);
  const json::array& content = body.at("content").as_array();
  ASSERT_EQ(content.size(), 4U);
  EXPECT_EQ(content[0].at("thinking"), "Two calls.");
  EXPECT_FALSE(content[0].at("signature").as_string().empty());
  EXPECT_EQ(content[1].at("text"), "Adding.");
  EXPECT_EQ(content[2].at("name"), "add");
  EXPECT_EQ(content[2].at("input").at("s"), "é \"q\"");
  EXPECT_NE(answer.body.find("12345678901234567890"), std::string::npos) << "all digits";
  EXPECT_TRUE(content[3].at("input").as_object().empty());
  EXPECT_EQ(body.at("stop_reason"), "tool_use");
  EXPECT_NE(api.last_prompt_text().find(
                R"({"name": "add", "description": "Adds.", "parameters": {"type": "object")"),
            std::string::npos);
}

TEST(MessagesTest, StreamSaysTheSameAtEverySplit) {
  ScriptedApi api;
  const std::string script = kThinkAndCall;
  const std::string request = ask(std::string(kThink) + R"(, "stream": true, )" + kAddTool);
  for (size_t at = 1; at < script.size(); ++at) {
    api.emit_pieces({script.substr(0, at), script.substr(at)});
    const JoinedMessage joined = join_message(api.stream(kMessagesPath, request));
    ASSERT_EQ(joined.blocks.size(), 4U) << at;
    EXPECT_EQ(joined.blocks[0].type, "thinking");
    EXPECT_EQ(joined.blocks[0].text, "Two calls.");
    EXPECT_FALSE(joined.blocks[0].signature.empty());
    EXPECT_EQ(joined.blocks[1].text, "Adding.");
    EXPECT_EQ(joined.blocks[2].name, "add");
    EXPECT_EQ(joined.blocks[2].text, "{\"a\": 12345678901234567890, \"s\": \"é \\\"q\\\"\"}");
    EXPECT_EQ(joined.blocks[3].text, "{}");
    EXPECT_EQ(joined.stop_reason, "tool_use");
    EXPECT_TRUE(joined.stopped);
    EXPECT_GT(joined.usage.at("output_tokens").as_int64(), 0);
  }
}

TEST(MessagesTest, SaysWhyItStopped) {
  ScriptedApi api;
  api.emit("one two three");
  const std::string stops = R"("stop_sequences": ["two"])";
  const json::value stopped = api.ok(kMessagesPath, ask(stops));
  EXPECT_EQ(stopped.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(stopped.at("stop_sequence"), "two");
  EXPECT_EQ(stopped.at("content").at(0).at("text"), "one ");
  const JoinedMessage joined =
      join_message(api.stream(kMessagesPath, ask(stops + R"(, "stream": true)")));
  EXPECT_EQ(joined.stop_reason, "stop_sequence");
  EXPECT_EQ(joined.stop_sequence, "two");
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  const json::value cut =
      api.ok(kMessagesPath,
             R"({"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_EQ(cut.at("stop_reason"), "max_tokens");
  EXPECT_EQ(cut.at("usage").at("output_tokens").as_int64(), 3);
}

TEST(MessagesTest, HistoryOfBlocksRendersAsTheFormatWantsIt) {
  ScriptedApi api;
  api.emit("x");
  const std::string body = ask(std::string(kThink) + ", " + kAddTool);
  json::object request = json::parse(body).as_object();
  request["system"] = json::parse(
      R"([{"type": "text", "text": "Be terse.", "cache_control": {"type": "ephemeral"}},
          {"type": "text", "text": "Be kind."}])");
  request["messages"] = json::parse(R"([
    {"role": "user", "content": [{"type": "text", "text": "Add."}, {"type": "image", "source": {}}]},
    {"role": "assistant", "content": [
      {"type": "thinking", "thinking": "Two calls.", "signature": "s"},
      {"type": "redacted_thinking", "data": "AAAA"},
      {"type": "text", "text": "Adding.", "citations": null},
      {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1.50}},
      {"type": "tool_use", "id": "c2", "name": "add", "input": {}}]},
    {"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "c2", "is_error": true,
       "content": [{"type": "text", "text": "A"}, {"type": "image", "source": {}}]},
      {"type": "tool_result", "tool_use_id": "c1", "content": "3"},
      {"type": "text", "text": "And the total?"}]}])");
  api.ok(kMessagesPath, json::serialize(request));
  const std::string prompt = api.last_prompt_text();
  const std::string head = "<｜begin▁of▁sentence｜>Be terse.\n\nBe kind.\n\n## Tools";
  EXPECT_TRUE(prompt.starts_with(head)) << prompt;
  const std::string tail =
      "<｜User｜>Add.\n\n[Unsupported image]<｜Assistant｜><think>Two calls.</think>Adding.\n\n"
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"add\">\n<｜DSML｜parameter name=\"a\" "
      "string=\"false\">1.5</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
      "name=\"add\">\n\n"
      "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result>3"
      "</tool_result>\n\n<tool_result>A\n\n[Unsupported image]</tool_result>\n\nAnd the "
      "total?<｜Assistant｜><think>";
  EXPECT_TRUE(prompt.ends_with(tail)) << prompt;
}

TEST(MessagesTest, AnAnswerThatComesBackExtendsItsPrompt) {
  ScriptedApi api;
  api.emit(kThinkAndCall);
  json::object request = json::parse(ask(std::string(kThink) + ", " + kAddTool)).as_object();
  const json::value answer = api.ok(kMessagesPath, json::serialize(request));
  const std::string first = api.last_prompt_text();
  json::array& messages = request["messages"].as_array();
  messages.push_back(json::object{{"role", "assistant"}, {"content", answer.at("content")}});
  json::array results;
  for (const json::value& block : answer.at("content").as_array()) {
    if (block.at("type") == "tool_use") {
      results.push_back(
          json::object{{"type", "tool_result"}, {"tool_use_id", block.at("id")}, {"content", "1"}});
    }
  }
  messages.push_back(json::object{{"role", "user"}, {"content", std::move(results)}});
  api.ok(kMessagesPath, json::serialize(request));
  const std::string again = api.last_prompt_text();
  // The number of 20 digits went through a JSON library of doubles here; a client keeps it.
  const std::string spoken = kThinkAndCall;
  const std::string until_number = spoken.substr(0, spoken.find("12345"));
  EXPECT_TRUE(again.starts_with(first + until_number)) << again;
}

TEST(MessagesTest, ALastAssistantMessageIsContinued) {
  ScriptedApi api;
  api.emit(" are red");
  const json::value body =
      api.ok(kMessagesPath,
             R"({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Poem"},
          {"role": "assistant", "content": "Roses"}]})");
  EXPECT_EQ(body.at("content").at(0).at("text"), " are red");
  EXPECT_TRUE(api.last_prompt_text().ends_with("<｜Assistant｜></think>Roses"));
}

TEST(MessagesTest, CountsThePromptThatItWouldRun) {
  ScriptedApi api;
  api.emit("x");
  const std::string fields = std::string(kThink) + ", " + kAddTool + R"(, "system": "S")";
  api.ok(kMessagesPath, ask(fields));
  const json::value count =
      api.ok(kCountPath,
             R"({"model": "m", "messages": [{"role": "user", "content": "hi"}], )" + fields + "}");
  EXPECT_EQ(
      count,
      json::value(json::object{{"input_tokens", static_cast<int64_t>(api.last_prompt().size())}}));
}

TEST(MessagesTest, FaultsHaveTheDialectsFormAndNameTheField) {
  ScriptedApi api;
  const auto refused = [&](const std::string& body, const std::string& text, int status = 400) {
    const http::Response answer = api.post(kMessagesPath, body);
    EXPECT_EQ(answer.status, status) << answer.body;
    const json::value error = json::parse(answer.body);
    EXPECT_EQ(error.at("type"), "error");
    EXPECT_NE(std::string(error.at("error").at("message").as_string()).find(text),
              std::string::npos)
        << answer.body << " should say " << text;
    return std::string(error.at("error").at("type").as_string());
  };
  const auto message = [](const std::string& text) {
    return R"({"model": "m", "max_tokens": 5, "messages": [)" + text + "]}";
  };
  EXPECT_EQ(refused("{", "not valid JSON"), "invalid_request_error");
  EXPECT_EQ(refused(R"({"model": "other", "max_tokens": 5, "messages": []})", "other", 404),
            "not_found_error");
  refused(R"({"model": "m", "messages": [{"role": "user", "content": "hi"}]})", "max_tokens");
  refused(ask(R"("n": 2)"), "n: unknown field");
  refused(ask(R"("temperature": "hot")"), "temperature: must be a number");
  refused(ask(R"("temperature": -1)"), "temperature");
  refused(ask(R"("thinking": {"type": "enabled", "budget_tokens": 0})"), "thinking.budget_tokens");
  refused(ask(R"("thinking": {"type": "maybe"})"), "thinking.type");
  refused(ask(R"("output_config": {"effort": "wild"})"), "output_config.effort");
  refused(ask(R"("output_config": {"shape": 1})"), "output_config.shape: unknown field");
  refused(ask(R"("tools": [{"type": "web_search_20250305", "name": "web_search"}])"),
          "tools[0].type");
  refused(ask(R"("tools": [{"name": "a b", "input_schema": {}}])"), "tools[0].name");
  refused(ask(R"("tools": [{"name": "a"}])"), "tools[0].input_schema: is required");
  refused(ask(R"("context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]})"),
          "context_management.edits[0]");
  refused(message(R"({"role": "tool", "content": "x"})"), "messages[0].role");
  refused(message(R"({"role": "user"})"), "messages[0].content: is required");
  refused(message(R"({"role": "user", "content": [{"type": "text"}]})"),
          "messages[0].content[0].text: is required");
  refused(message(R"({"role": "user", "content": [{"type": "tool_result", "content": "x"}]})"),
          "messages[0].content[0].tool_use_id: is required");
  refused(message(R"({"role": "user", "content": "hi", "name": "Bob"})"), "messages[0].name");
  // The places of messages are the client's, whatever was put in front of them.
  refused(R"({"model": "m", "max_tokens": 5, "system": "s", "messages": [
      {"role": "user", "content": "hi"}, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]})",
          "messages[1]: a message with tool calls cannot be continued");
  const http::Response wrong_method = [&] { return *api.client().get(kMessagesPath); }();
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(json::parse(wrong_method.body).at("type"), "error");
}

TEST(MessagesTest, AFailureInTheStreamIsAnErrorEvent) {
  ScriptedApi api;
  engine::Script script = engine::script_of_text(*api.tokenizer, "abcdef");
  script.nan_after = 3;
  api.set(script);
  const StreamedEvents events = api.stream(kMessagesPath, ask(R"("stream": true)"));
  ASSERT_FALSE(events.chunks.empty());
  EXPECT_EQ(events.names.back(), "error");
  EXPECT_EQ(events.chunks.back().at("error").at("type"), "api_error");
}

TEST(MessagesTest, TakesTheKeyInEitherHeader) {
  ScriptedApiOptions options;
  options.server.api_key = "secret";
  ScriptedApi api(options);
  api.emit("x");
  const auto status_with = [&](http::Headers headers) {
    const http::ClientRequest request{"POST", kMessagesPath, std::move(headers), ask()};
    const http::Response answer = *api.client().send(request);
    if (answer.status == 401) {
      EXPECT_EQ(json::parse(answer.body).at("error").at("type"), "authentication_error");
    }
    return answer.status;
  };
  EXPECT_EQ(status_with({}), 401);
  EXPECT_EQ(status_with({{"x-api-key", "secret"}}), 200);
  EXPECT_EQ(status_with({{"x-api-key", "wrong"}}), 401);
  EXPECT_EQ(status_with({{"Authorization", "Bearer secret"}, {"x-api-key", "made up"}}), 200);
}

}  // namespace
}  // namespace baleen::server
