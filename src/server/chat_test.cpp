// POST /v1/chat/completions over HTTP: messages, reasoning, tools, log-probs, streaming order.
#include <set>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

std::string chat(const std::string& fields) {
  return R"({"model": "m", "messages": [{"role": "user", "content": "hi"}])" +
         (fields.empty() ? std::string("}") : ", " + fields + "}");
}

constexpr const char* kLookTool =
    R"("tools": [{"type": "function", "function": {"name": "look", "parameters":
        {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}}}])";
constexpr const char* kTwoCalls =
    "Working.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n<｜DSML｜parameter "
    "name=\"n\" "
    "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
    "name=\"look\">\n<｜DSML｜parameter name=\"s\" "
    "string=\"true\">\"q\"</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

const json::value& message_of(const json::value& body) {
  return body.at("choices").at(0).at("message");
}

TEST(ChatTest, AnswersWithAMessage) {
  ScriptedApi api;
  api.emit("Hello there.");
  const json::value body = api.ok(kChatPath, chat(""));
  EXPECT_TRUE(body.at("id").as_string().starts_with("chatcmpl-"));
  EXPECT_EQ(body.at("object"), "chat.completion");
  const json::value& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "Hello there.");
  EXPECT_TRUE(choice.at("message").at("reasoning_content").is_null());
  EXPECT_FALSE(choice.at("message").as_object().contains("tool_calls"));
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(api.last_prompt_text(), "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>");
  EXPECT_EQ(body.at("usage").at("prompt_tokens").as_int64(),
            static_cast<int64_t>(api.last_prompt().size()));
}

TEST(ChatTest, ReasoningIsApartAndCounted) {
  ScriptedApi api;
  api.emit("Add them.</think>Four.");
  const json::value body = api.ok(kChatPath, chat(R"("thinking": {"type": "enabled"})"));
  EXPECT_EQ(message_of(body).at("reasoning_content"), "Add them.");
  EXPECT_EQ(message_of(body).at("content"), "Four.");
  const auto reasoning = static_cast<int64_t>(api.tokenizer->encode("Add them.</think>").size());
  EXPECT_EQ(body.at("usage").at("reasoning_tokens").as_int64(), reasoning);
  EXPECT_EQ(body.at("usage").at("completion_tokens_details").at("reasoning_tokens").as_int64(),
            reasoning);
}

TEST(ChatTest, ReasoningCanStayInContent) {
  ScriptedApi api;
  const std::string fields = R"("thinking": {"type": "enabled"}, "separate_reasoning": false)";
  for (const std::string script : {"Add.</think>Four.", "No end"}) {
    for (const bool in_one_piece : {false, true}) {
      const std::string how = in_one_piece ? R"(, "stream_reasoning": false)" : "";
      const auto check = [&] {
        const json::value body = api.ok(kChatPath, chat(fields + how));
        EXPECT_EQ(message_of(body).at("content").as_string(), script);
        EXPECT_TRUE(message_of(body).at("reasoning_content").is_null());
        const JoinedChoice joined =
            join_choice(api.stream(kChatPath, chat(fields + how + R"(, "stream": true)")).chunks);
        EXPECT_EQ(joined.content, script);
        EXPECT_EQ(joined.reasoning, "");
      };
      api.emit(script);
      check();
      api.emit_pieces({script});  // all in one step
      check();
      api.emit_pieces({script.substr(0, 3), script.substr(3)});
      check();
    }
  }
}

TEST(ChatTest, ReasoningCanComeInOnePiece) {
  ScriptedApi api;
  const std::string fields =
      R"("thinking": {"type": "enabled"}, "stream_reasoning": false, "stream": true)";
  api.emit("Add them up.</think>Four.");
  const StreamedEvents events = api.stream(kChatPath, chat(fields));
  int num_reasoning = 0;
  for (const json::value& chunk : events.chunks) {
    num_reasoning += static_cast<int>(
        chunk.at("choices").at(0).at("delta").as_object().contains("reasoning_content"));
  }
  EXPECT_EQ(num_reasoning, 1);
  EXPECT_EQ(join_choice(events.chunks).reasoning, "Add them up.");
  EXPECT_EQ(join_choice(events.chunks).content, "Four.");
  // Stopped without the end of reasoning: the text is the answer, and comes once.
  for (const std::vector<std::string>& pieces :
       {std::vector<std::string>{"never closed"}, {"never", " closed"}, {"n", "ever ", "closed"}}) {
    api.emit_pieces(pieces);
    const JoinedChoice joined = join_choice(api.stream(kChatPath, chat(fields)).chunks);
    EXPECT_EQ(joined.reasoning, "");
    EXPECT_EQ(joined.content, "never closed");
  }
}

TEST(ChatTest, StreamOrderIsRoleReasoningContentFinishUsageDone) {
  ScriptedApi api;
  api.emit("ab</think>cd");
  const StreamedEvents events =
      api.stream(kChatPath, chat(R"("thinking": {"type": "enabled"}, "stream": true,
              "stream_options": {"include_usage": true})"));
  std::string order;
  for (const json::value& chunk : events.chunks) {
    EXPECT_EQ(chunk.at("object"), "chat.completion.chunk");
    EXPECT_EQ(chunk.at("id"), events.chunks[0].at("id"));
    const json::array& choices = chunk.at("choices").as_array();
    char kind = 'u';
    if (!choices.empty()) {
      EXPECT_TRUE(chunk.at("usage").is_null());
      const json::object& delta = choices[0].at("delta").as_object();
      kind = delta.contains("role")                      ? 'R'
             : delta.contains("reasoning_content")       ? 'r'
             : !choices[0].at("finish_reason").is_null() ? 'f'
                                                         : 'c';
      if (kind == 'f') {
        EXPECT_TRUE(delta.at("content").is_null());
      }
    }
    if (order.empty() || order.back() != kind) {
      order += kind;
    }
  }
  EXPECT_EQ(order, "Rrcfu");
  EXPECT_TRUE(events.done);
  EXPECT_TRUE(events.after_done.empty());
}

TEST(ChatTest, ContinuousUsageGrows) {
  ScriptedApi api;
  api.emit("one two three");
  const StreamedEvents events = api.stream(kChatPath, chat(R"("stream": true, "n": 2,
              "stream_options": {"include_usage": true, "continuous_usage_stats": true})"));
  int64_t last = 0;
  for (const json::value& chunk : events.chunks) {
    const int64_t tokens = chunk.at("usage").at("completion_tokens").as_int64();
    EXPECT_GE(tokens, last);
    last = tokens;
  }
  EXPECT_EQ(last, 2 * (static_cast<int64_t>(api.tokenizer->encode("one two three").size()) + 1));
}

TEST(ChatTest, ToolCallsComeWithIdsWholeAndStreamed) {
  ScriptedApi api;
  api.emit(kTwoCalls);
  const json::value body = api.ok(kChatPath, chat(kLookTool));
  EXPECT_EQ(message_of(body).at("content"), "Working.");
  const json::array& calls = message_of(body).at("tool_calls").as_array();
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[1].at("index"), 1);
  EXPECT_EQ(calls[1].at("type"), "function");
  EXPECT_TRUE(calls[0].at("id").as_string().starts_with("call_"));
  EXPECT_NE(calls[0].at("id"), calls[1].at("id"));
  EXPECT_EQ(json::parse(calls[0].at("function").at("arguments").as_string()),
            json::parse(R"({"n": 1})"));
  EXPECT_EQ(json::parse(calls[1].at("function").at("arguments").as_string()),
            json::parse(R"({"s": "\"q\""})"));
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason"), "tool_calls");

  const StreamedEvents events =
      api.stream(kChatPath, chat(std::string(kLookTool) + R"(, "stream": true)"));
  const JoinedChoice joined = join_choice(events.chunks);
  EXPECT_EQ(joined.content, "Working.");
  EXPECT_EQ(joined.finish_reason, "tool_calls");
  ASSERT_EQ(joined.calls.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(joined.calls[i].name, "look");
    EXPECT_EQ(json::parse(joined.calls[i].arguments),
              json::parse(calls[i].at("function").at("arguments").as_string()));
  }
}

TEST(ChatTest, ToolChoiceNoneHidesTheTools) {
  ScriptedApi api;
  api.emit(kTwoCalls);
  const json::value body =
      api.ok(kChatPath, chat(std::string(kLookTool) + R"(, "tool_choice": "none")"));
  EXPECT_FALSE(message_of(body).as_object().contains("tool_calls"));
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(api.last_prompt_text().find("look"), std::string::npos);
}

TEST(ChatTest, SchemasReachTheModelWithTheirDigits) {
  ScriptedApi api;
  api.emit("x");
  api.ok(kChatPath,
         chat(R"("tools": [{"type": "function", "function": {"name": "f", "description": "é",
              "parameters": {"type": "object", "maximum": 12345678901234567890123, "x": 1.50}}}])"));
  EXPECT_NE(api.last_prompt_text().find(
                R"({"name": "f", "description": "é", "parameters": {"type": "object", )"
                R"("maximum": 12345678901234567890123, "x": 1.5}})"),
            std::string::npos)
      << api.last_prompt_text();
}

TEST(ChatTest, ConversationWithToolResultsIsRendered) {
  ScriptedApi api;
  api.emit("done");
  api.ok(kChatPath,
         R"({"model": "m", "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": [
              {"id": "k", "type": "function", "index": 0, "function": {"name": "look", "arguments": {"n": 2}}}]},
            {"role": "tool", "tool_call_id": "k", "name": "look", "content": "seen"}]})");
  const std::string prompt = api.last_prompt_text();
  EXPECT_NE(prompt.find("Be brief."), std::string::npos);
  EXPECT_NE(prompt.find("<｜User｜>a\n\nb<｜Assistant｜>"), std::string::npos) << prompt;
  EXPECT_NE(prompt.find("<tool_result>seen</tool_result><｜Assistant｜></think>"),
            std::string::npos)
      << prompt;
}

TEST(ChatTest, FinalMessageIsContinued) {
  ScriptedApi api;
  api.emit(" world");
  const json::value body = api.ok(kChatPath,
                                  R"({"model": "m", "continue_final_message": true, "messages": [
                                     {"role": "user", "content": "hi"},
                                     {"role": "assistant", "content": "Hello"}]})");
  EXPECT_TRUE(api.last_prompt_text().ends_with("<｜Assistant｜></think>Hello"));
  EXPECT_EQ(message_of(body).at("content"), " world");
}

TEST(ChatTest, LogprobsWholeAndStreamedAgree) {
  ScriptedApi api;
  api.emit("Hi é.");
  const std::string fields = R"("logprobs": true, "top_logprobs": 3)";
  const json::value body = api.ok(kChatPath, chat(fields));
  const json::array& content = body.at("choices").at(0).at("logprobs").at("content").as_array();
  ASSERT_EQ(content.size(), api.tokenizer->encode("Hi é.").size());
  std::string bytes;
  for (const json::value& token : content) {
    EXPECT_NEAR(token.at("logprob").as_double(), -0.6931, 1e-4);
    EXPECT_EQ(token.at("top_logprobs").as_array().size(), 3U);
    for (const json::value& byte : token.at("bytes").as_array()) {
      bytes += static_cast<char>(byte.as_int64());
    }
  }
  EXPECT_EQ(bytes, "Hi é.");
  const StreamedEvents events = api.stream(kChatPath, chat(fields + R"(, "stream": true)"));
  EXPECT_EQ(join_choice(events.chunks).logprobs, content);
  EXPECT_TRUE(api.ok(kChatPath, chat("")).at("choices").at(0).at("logprobs").is_null());
}

TEST(ChatTest, EveryChoiceOfNIsThere) {
  ScriptedApi api;
  api.emit("same");
  const json::value body = api.ok(kChatPath, chat(R"("n": 3, "seed": -5)"));
  ASSERT_EQ(body.at("choices").as_array().size(), 3U);
  EXPECT_EQ(body.at("usage").at("prompt_tokens").as_int64(),
            static_cast<int64_t>(api.last_prompt().size()));
  const StreamedEvents events = api.stream(kChatPath, chat(R"("n": 3, "stream": true)"));
  for (int64_t index = 0; index < 3; ++index) {
    EXPECT_EQ(join_choice(events.chunks, index).content, "same");
    EXPECT_EQ(join_choice(events.chunks, index).finish_reason, "stop");
  }
}

TEST(ChatTest, ThinkingBudgetForcesTheEnd) {
  ScriptedApi api;
  api.emit("abcdefghijklmnopqrstuvwxyz</think>done");
  const json::value body =
      api.ok(kChatPath, chat(R"("thinking": {"type": "enabled", "budget_tokens": 4})"));
  EXPECT_EQ(body.at("usage").at("reasoning_tokens"), 5);  // four and the forced end
  EXPECT_EQ(message_of(body).at("content"), "done");
}

TEST(ChatTest, AnswersOfManyClientsDoNotMix) {
  ScriptedApi api;
  api.emit("steady");
  std::set<std::string> ids;
  std::mutex mutex;
  std::vector<std::jthread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      const bool stream = i % 2 == 0;
      const std::string fields = stream ? R"("stream": true)" : R"("n": 2)";
      std::string id;
      if (stream) {
        const StreamedEvents events = api.stream(kChatPath, chat(fields));
        EXPECT_EQ(join_choice(events.chunks).content, "steady");
        id = std::string(events.chunks.at(0).at("id").as_string());
      } else {
        id = std::string(api.ok(kChatPath, chat(fields)).at("id").as_string());
      }
      const std::lock_guard lock(mutex);
      ids.insert(id);
    });
  }
  clients.clear();
  EXPECT_EQ(ids.size(), 16U);
}

}  // namespace
}  // namespace baleen::server
