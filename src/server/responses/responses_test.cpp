// POST /v1/responses over HTTP: items, events, history, the store, errors.
#include <future>

#include <gtest/gtest.h>

#include "server/responses/response_store.h"
#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

constexpr const char* kResponsesPath = "/v1/responses";
constexpr const char* kAddFunction =
    R"("tools": [{"type": "function", "name": "add", "description": "Adds.", "parameters":
        {"type": "object", "properties": {"a": {"type": "number"}}}, "strict": null}])";
constexpr const char* kEffort = R"("reasoning": {"effort": "high", "summary": "auto"})";
constexpr const char* kReasonAndCall =
    "One call.</think>Adding.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"add\">\n"
    "<｜DSML｜parameter name=\"a\" string=\"false\">12</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>";

std::string respond(const std::string& fields = "") {
  return R"({"model": "m", "input": "hi")" +
         (fields.empty() ? std::string("}") : ", " + fields + "}");
}

/// The text of an output item.
std::string item_text(const json::value& item) {
  return item.at("type") == "function_call"
             ? std::string(item.at("arguments").as_string())
             : std::string(item.at("content").at(0).at("text").as_string());
}

TEST(ResponsesTest, AnswersWithItems) {
  ScriptedApi api;
  api.emit(kReasonAndCall);
  const json::value body =
      api.ok(kResponsesPath, respond(std::string(kEffort) + ", " + kAddFunction));
  EXPECT_TRUE(body.at("id").as_string().starts_with("resp_"));
  EXPECT_EQ(body.at("object"), "response");
  EXPECT_EQ(body.at("status"), "completed");
  const json::array& output = body.at("output").as_array();
  ASSERT_EQ(output.size(), 3U);
  EXPECT_EQ(output[0].at("type"), "reasoning");
  EXPECT_EQ(item_text(output[0]), "One call.");
  EXPECT_EQ(output[1].at("type"), "message");
  EXPECT_EQ(item_text(output[1]), "Adding.");
  EXPECT_EQ(output[2].at("name"), "add");
  EXPECT_EQ(item_text(output[2]), R"({"a": 12})");
  EXPECT_TRUE(output[2].at("call_id").as_string().starts_with("call_"));
  EXPECT_EQ(body.at("reasoning").at("effort"), "high");
  EXPECT_EQ(body.at("usage").at("input_tokens").as_int64(),
            static_cast<int64_t>(api.last_prompt().size()));
  EXPECT_GT(body.at("usage").at("output_tokens_details").at("reasoning_tokens").as_int64(), 0);
  EXPECT_NE(api.last_prompt_text().find(
                R"({"name": "add", "description": "Adds.", "parameters": {"type": "object")"),
            std::string::npos);
}

TEST(ResponsesTest, EventsAreNumberedAndSayTheSameAtEverySplit) {
  ScriptedApi api;
  const std::string script = kReasonAndCall;
  const std::string request =
      respond(std::string(kEffort) + R"(, "stream": true, )" + kAddFunction);
  for (size_t at = 1; at < script.size(); ++at) {
    api.emit_pieces({script.substr(0, at), script.substr(at)});
    const StreamedEvents events = api.stream(kResponsesPath, request);
    ASSERT_FALSE(events.chunks.empty()) << events.error_body;
    EXPECT_FALSE(events.done);
    std::vector<std::string> texts(3);
    std::vector<std::string> done(3);
    for (size_t i = 0; i < events.chunks.size(); ++i) {
      const json::object& event = events.chunks[i].as_object();
      const std::string type(event.at("type").as_string());
      EXPECT_EQ(type, events.names[i]);
      EXPECT_EQ(event.at("sequence_number").as_int64(), static_cast<int64_t>(i));
      if (const json::value* index = event.if_contains("output_index")) {
        const auto item = static_cast<size_t>(index->as_int64());
        ASSERT_LT(item, 3U);
        if (type.ends_with(".delta")) {
          EXPECT_TRUE(done[item].empty());
          texts[item] += event.at("delta").as_string();
        } else if (type == "response.output_item.done") {
          done[item] = item_text(event.at("item"));
        }
      }
    }
    EXPECT_EQ(texts, (std::vector<std::string>{"One call.", "Adding.", R"({"a": 12})"}));
    EXPECT_EQ(texts, done);
    EXPECT_EQ(events.names.front(), "response.created");
    EXPECT_EQ(events.names.back(), "response.completed");
    const json::value& last = events.chunks.back().at("response");
    EXPECT_EQ(last.at("status"), "completed");
    EXPECT_EQ(item_text(last.at("output").at(1)), "Adding.");
  }
}

/// The texts of the tokens that a message's log-probs name, joined; each has a log-prob.
std::string text_of_logprobs(const json::value& list, size_t num_top) {
  std::string text;
  for (const json::value& token : list.as_array()) {
    text += token.at("token").as_string();
    EXPECT_LT(token.at("logprob").as_double(), 0.0);
    EXPECT_EQ(token.at("top_logprobs").as_array().size(), num_top);
  }
  return text;
}

TEST(ResponsesTest, LogprobsAreOfTheMessagesTextAlone) {
  ScriptedApi api;
  const std::string script = kReasonAndCall;
  const std::string fields = std::string(kEffort) + ", " + kAddFunction +
                             R"(, "include": ["message.output_text.logprobs"], "top_logprobs": 2)";
  api.emit(script);
  const json::value body = api.ok(kResponsesPath, respond(fields));
  EXPECT_EQ(body.at("top_logprobs").as_int64(), 2);
  const json::value& part = body.at("output").at(1).at("content").at(0);
  EXPECT_EQ(text_of_logprobs(part.at("logprobs"), 2), "Adding.");
  EXPECT_FALSE(body.at("output").at(0).at("content").at(0).as_object().contains("logprobs"));
  for (size_t at = 1; at < script.size(); ++at) {
    api.emit_pieces({script.substr(0, at), script.substr(at)});
    const StreamedEvents events =
        api.stream(kResponsesPath, respond(fields + R"(, "stream": true)"));
    std::string streamed;
    for (const json::value& event : events.chunks) {
      if (event.at("type") == "response.output_text.delta") {
        streamed += text_of_logprobs(event.at("logprobs"), 2);
      } else if (event.at("type") == "response.output_text.done") {
        EXPECT_EQ(text_of_logprobs(event.at("logprobs"), 2), streamed);
      }
    }
    // Tokens of the pieces: the last one may reach beyond the text.
    EXPECT_TRUE(streamed.starts_with("Adding.")) << at << ' ' << streamed;
    EXPECT_LE(streamed.size(), std::string("Adding.\n\n").size()) << at << ' ' << streamed;
  }
  api.emit("plain");
  const json::value plain = api.ok(kResponsesPath, respond());
  EXPECT_TRUE(plain.at("output").at(0).at("content").at(0).at("logprobs").as_array().empty());
}

TEST(ResponsesTest, ItemsOfATurnBecomeOneMessage) {
  ScriptedApi api;
  api.emit("x");
  json::object request =
      json::parse(respond(std::string(kEffort) + ", " + kAddFunction)).as_object();
  request["instructions"] = "Be terse.";
  request["input"] = json::parse(R"([
    {"role": "user", "content": [{"type": "input_text", "text": "Add."}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text",
      "text": "Two calls."}], "encrypted_content": null},
    {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
      "content": [{"type": "output_text", "text": "Adding.", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": "{\"a\": 1.50}"},
    {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c2", "output": "7"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "3"}]},
    {"role": "developer", "content": "Now."}, {"role": "user", "content": "Total?"}])");
  api.ok(kResponsesPath, json::serialize(request));
  const std::string prompt = api.last_prompt_text();
  EXPECT_TRUE(prompt.starts_with("<｜begin▁of▁sentence｜>Be terse.\n\n## Tools")) << prompt;
  EXPECT_TRUE(prompt.ends_with(
      "<｜User｜>Add.<｜Assistant｜><think>Two calls.</think>Adding.\n\n<｜DSML｜tool_calls>\n"
      "<｜DSML｜invoke name=\"add\">\n<｜DSML｜parameter name=\"a\" string=\"false\">1.5"
      "</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
      "name=\"add\">\n\n</｜DSML｜invoke>\n"
      "</｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result>3</tool_result>\n\n"
      "<tool_result>7</tool_result>Now.<｜User｜>Total?<｜Assistant｜><think>"))
      << prompt;
}

TEST(ResponsesTest, AKeptResponseCanBeReadAndContinued) {
  ScriptedApi api;
  api.emit(kReasonAndCall);
  const std::string fields = std::string(kEffort) + ", " + kAddFunction;
  for (const bool streams : {false, true}) {
    json::object request =
        json::parse(respond(fields + R"(, "instructions": "Be terse.")")).as_object();
    json::value first;
    if (streams) {
      request["stream"] = true;
      first = api.stream(kResponsesPath, json::serialize(request)).chunks.back().at("response");
    } else {
      first = api.ok(kResponsesPath, json::serialize(request));
    }
    const std::string prompt = api.last_prompt_text();
    const std::string id(first.at("id").as_string());
    const http::Response kept = *api.client().get(std::string(kResponsesPath) + "/" + id);
    EXPECT_EQ(kept.status, 200);
    EXPECT_EQ(json::parse(kept.body), first);
    const std::string call(first.at("output").at(2).at("call_id").as_string());
    json::object next = json::parse(respond(fields)).as_object();
    next["previous_response_id"] = id;
    next["instructions"] = "Be terse.";
    next["input"] = json::array{
        json::object{{"type", "function_call_output"}, {"call_id", call}, {"output", "12"}}};
    api.ok(kResponsesPath, json::serialize(next));
    EXPECT_TRUE(api.last_prompt_text().starts_with(prompt + kReasonAndCall))
        << api.last_prompt_text();
    EXPECT_TRUE(
        api.last_prompt_text().ends_with("<tool_result>12</tool_result><｜Assistant｜><think>"));
  }
}

TEST(ResponsesTest, WhatIsNotKeptIsNotFound) {
  ScriptedApi api;
  api.emit("x");
  const json::value body = api.ok(kResponsesPath, respond(R"("store": false)"));
  EXPECT_EQ(body.at("store"), false);
  const std::string id(body.at("id").as_string());
  EXPECT_EQ(api.client().get(std::string(kResponsesPath) + "/" + id)->status, 404);
  EXPECT_EQ(api.post(kResponsesPath, respond(R"("previous_response_id": ")" + id + "\"")).status,
            404);
  EXPECT_EQ(api.post(std::string(kResponsesPath) + "/resp_x/cancel", "").status, 404);
}

TEST(ResponsesTest, CancelEndsAResponse) {
  ScriptedApiOptions options;
  options.step_delay = std::chrono::microseconds(1000);
  options.max_context = 1 << 20;
  ScriptedApi api(options);
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  std::promise<std::string> created;
  auto streamed = std::async(std::launch::async, [&] {
    http::SseReader reader;
    std::string last;
    const http::ClientRequest request{"POST", kResponsesPath, {}, respond(R"("stream": true)")};
    const auto answer = api.client().stream(request, [&](std::string_view piece) {
      reader.push(piece, [&](const http::SseEvent& event) {
        if (event.event == "response.created") {
          created.set_value(
              std::string(json::parse(event.data).at("response").at("id").as_string()));
        }
        last = event.data;
      });
      return true;
    });
    return last;
  });
  const std::string id = created.get_future().get();
  EXPECT_EQ(api.post(std::string(kResponsesPath) + "/" + id + "/cancel", "").status, 200);
  const json::value last = json::parse(streamed.get());
  EXPECT_EQ(last.at("response").at("status"), "cancelled");
  EXPECT_TRUE(api.idle_soon());
}

TEST(ResponsesTest, ACutAnswerIsIncomplete) {
  ScriptedApi api;
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  const json::value body = api.ok(kResponsesPath, respond(R"("max_output_tokens": 3)"));
  EXPECT_EQ(body.at("status"), "incomplete");
  EXPECT_EQ(body.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(body.at("output").at(0).at("status"), "incomplete");
  const StreamedEvents events =
      api.stream(kResponsesPath, respond(R"("max_output_tokens": 3, "stream": true)"));
  EXPECT_EQ(events.names.back(), "response.incomplete");
}

TEST(ResponsesTest, AFailureInTheStreamIsTheLastEvent) {
  ScriptedApi api;
  engine::Script script = engine::script_of_text(*api.tokenizer, "abcdef");
  script.nan_after = 3;
  api.set(script);
  const StreamedEvents events = api.stream(kResponsesPath, respond(R"("stream": true)"));
  EXPECT_EQ(events.names.back(), "response.failed");
  EXPECT_EQ(events.chunks.back().at("response").at("error").at("code"), "server_error");
}

TEST(ResponsesTest, FaultsNameTheirField) {
  ScriptedApi api;
  const auto refused = [&](const std::string& body, const std::string& param) {
    const http::Response answer = api.post(kResponsesPath, body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(json::parse(answer.body).at("error").at("param"), json::value(param)) << answer.body;
  };
  const auto with_input = [](const std::string& item) {
    return R"({"model": "m", "input": [)" + item + "]}";
  };
  refused(R"({"model": "m"})", "input");
  refused(R"({"model": "m", "input": 5})", "input");
  refused(R"({"model": "m", "input": []})", "messages");
  refused(with_input("5"), "input[0]");
  refused(with_input(R"({"role": "tool", "content": "x"})"), "input[0].role");
  refused(with_input(R"({"type": "web_search_call", "id": "x"})"), "input[0].type");
  refused(with_input(R"({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]})"),
          "input[0].content[0].type");
  refused(with_input(R"({"type": "function_call", "name": "f"})"), "input[0].call_id");
  refused(with_input(R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})"),
          "input[1]");
  refused(respond(R"("tools": [{"type": "web_search"}])"), "tools[0].type");
  refused(respond(R"("tools": [{"type": "function", "name": "a b"}])"), "tools[0].name");
  refused(respond(R"("tool_choice": "required")"), "tool_choice");
  refused(respond(R"("reasoning": {"effort": "wild"})"), "reasoning.effort");
  refused(respond(R"("text": {"format": {"type": "xml"}})"), "text.format.type");
  refused(respond(R"("background": true)"), "background");
  refused(respond(R"("truncation": "auto")"), "truncation");
  refused(respond(R"("include": ["file_search_call.results"])"), "include[0]");
  refused(respond(R"("top_logprobs": 21)"), "top_logprobs");
  refused(respond(R"("max_output_tokens": 0)"), "max_output_tokens");
  refused(respond(R"("max_output_tokens": 100000)"), "input");
  refused(respond(R"("n": 2)"), "n");
}

TEST(ResponseStoreTest, KeepsTheLast) {
  ResponseStore store(2);
  store.put("a", {"1", {}});
  store.put("b", {"2", {}});
  store.put("a", {"3", {}});
  EXPECT_EQ(store.find("a")->body, "3");
  store.put("c", {"4", {}});
  EXPECT_FALSE(store.find("a")) << "the oldest, however often it was written";
  EXPECT_EQ(store.find("b")->body, "2");
  EXPECT_EQ(store.find("c")->body, "4");
  ResponseStore none(0);
  none.put("a", {"1", {}});
  EXPECT_FALSE(none.find("a"));
}

}  // namespace
}  // namespace baleen::server
