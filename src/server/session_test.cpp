// Sessions of agents, thirty turns long, in every dialect: reasoning, parallel calls, results out
// of order, odd parts, reasoning that clients lose. No turn is refused, and a turn whose history
// comes back as it was sent is the prompt and the answer before it, token by token, and what is
// new: the cache gives all of it that has run, to the last multiple of four tokens.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

constexpr int kTurns = 30;

/// What the model says in a turn: it thinks, says something in most turns, and calls up to three
/// tools at once; every fifth turn it only answers.
std::string model_turn(int turn) {
  std::string text = "Step " + std::to_string(turn) + ": \"check\" <b>again</b>.</think>";
  const bool calls = turn % 5 != 4;
  if (turn % 3 != 0 || !calls) {
    text += "Looking at part " + std::to_string(turn) + " 好.";
  }
  if (!calls) {
    return text;
  }
  text += "\n\n<｜DSML｜tool_calls>\n";
  for (int call = 0; call <= turn % 3; ++call) {
    text +=
        "<｜DSML｜invoke name=\"run\">\n<｜DSML｜parameter name=\"command\" string=\"true\">ls -l "
        "\"dir " +
        std::to_string(turn) +
        "\"\n# two lines</｜DSML｜parameter>\n<｜DSML｜parameter name=\"limits\" "
        "string=\"false\">[" +
        std::to_string(call) + ", {\"deep\": null}]</｜DSML｜parameter>\n</｜DSML｜invoke>\n";
  }
  return text + "</｜DSML｜tool_calls>";
}

json::value tool_schema() {
  return json::parse(R"({"type": "object", "properties": {"command": {"type": "string"},
                         "limits": {"type": "array"}}})");
}

/// One dialect's client: keeps the history as such clients do.
struct SessionClient {
  virtual ~SessionClient() = default;
  virtual const char* path() const = 0;
  virtual json::object request() const = 0;
  /// Prompt tokens that did not run again.
  virtual int64_t cached_tokens(const json::value& answer) const = 0;
  /// Takes the answer into the history; gives the ids of its calls.
  virtual std::vector<std::string> take(const json::value& answer) = 0;
  virtual void add_results(const std::vector<std::string>& call_ids, int turn) = 0;
  virtual void say(int turn) = 0;
  /// Forgets the reasoning of the latest answer.
  virtual void lose_reasoning() = 0;
};

std::string result_text(int turn, const std::string& id) {
  return "result of turn " + std::to_string(turn) + " for " + id.substr(0, 5);
}

struct ChatSession final : SessionClient {
  // A session that gets its first system message later is another prompt: tools belong to the
  // first.
  json::array messages{json::object{{"role", "system"}, {"content", "You are an agent."}}};
  const char* path() const override { return kChatPath; }
  int64_t cached_tokens(const json::value& answer) const override {
    return answer.at_pointer("/usage/prompt_tokens_details/cached_tokens").as_int64();
  }
  json::object request() const override {
    return {{"model", "m"},
            {"messages", messages},
            {"thinking", json::object{{"type", "enabled"}}},
            {"tools",
             json::array{json::object{
                 {"type", "function"},
                 {"function", json::object{{"name", "run"}, {"parameters", tool_schema()}}}}}}};
  }
  std::vector<std::string> take(const json::value& answer) override {
    const json::object& message = answer.at("choices").at(0).at("message").as_object();
    messages.push_back(message);
    std::vector<std::string> ids;
    if (const json::value* calls = message.if_contains("tool_calls")) {
      for (const json::value& call : calls->as_array()) {
        ids.emplace_back(call.at("id").as_string());
      }
    }
    return ids;
  }
  void add_results(const std::vector<std::string>& call_ids, int turn) override {
    std::vector<std::string> ids = call_ids;
    if (turn % 2 == 1) {
      std::reverse(ids.begin(), ids.end());
    }
    for (const std::string& id : ids) {
      messages.push_back(
          json::object{{"role", "tool"}, {"tool_call_id", id}, {"content", result_text(turn, id)}});
    }
  }
  void say(int turn) override {
    if (turn % 2 == 0) {
      messages.push_back(json::object{
          {"role", "user"},
          {"content",
           json::array{
               json::object{{"type", "text"}, {"text", "Go on, please."}},
               json::object{{"type", "image_url"}, {"image_url", json::object{{"url", "x"}}}}}}});
    } else {
      messages.push_back(json::object{{"role", "developer"}, {"content", "Be careful."}});
      messages.push_back(json::object{{"role", "user"}, {"content", ""}});
    }
  }
  void lose_reasoning() override { messages.back().as_object().erase("reasoning_content"); }
};

struct MessagesSession final : SessionClient {
  json::array messages;
  const char* path() const override { return "/v1/messages"; }
  int64_t cached_tokens(const json::value& answer) const override {
    return answer.at_pointer("/usage/cache_read_input_tokens").as_int64();
  }
  json::object request() const override {
    return {{"model", "m"},
            {"max_tokens", 2000},
            {"system", json::array{json::object{{"type", "text"}, {"text", "You are an agent."}}}},
            {"messages", messages},
            {"thinking", json::object{{"type", "enabled"}, {"budget_tokens", 1500}}},
            {"tools", json::array{json::object{{"name", "run"}, {"input_schema", tool_schema()}}}}};
  }
  std::vector<std::string> take(const json::value& answer) override {
    messages.push_back(json::object{{"role", "assistant"}, {"content", answer.at("content")}});
    std::vector<std::string> ids;
    for (const json::value& block : answer.at("content").as_array()) {
      if (block.at("type") == "tool_use") {
        ids.emplace_back(block.at("id").as_string());
      }
    }
    return ids;
  }
  void add_results(const std::vector<std::string>& call_ids, int turn) override {
    json::array blocks;
    for (const std::string& id : call_ids) {
      json::object block{{"type", "tool_result"}, {"tool_use_id", id}};
      if (turn % 2 == 0) {
        block["content"] = result_text(turn, id);
      } else {
        block["content"] = json::array{
            json::object{{"type", "text"}, {"text", result_text(turn, id)}},
            json::object{{"type", "image"}, {"source", json::object{{"type", "base64"}}}}};
        block["is_error"] = true;
      }
      blocks.push_back(std::move(block));
    }
    if (turn % 2 == 1) {
      std::reverse(blocks.begin(), blocks.end());
    }
    messages.push_back(json::object{{"role", "user"}, {"content", std::move(blocks)}});
  }
  void say(int) override {
    messages.push_back(json::object{{"role", "user"}, {"content", "Go on, please."}});
  }
  void lose_reasoning() override {
    json::array& blocks = messages.back().as_object().at("content").as_array();
    blocks.erase(blocks.begin());
  }
};

struct ResponsesSession final : SessionClient {
  explicit ResponsesSession(bool by_id) : by_id_(by_id) {}
  json::array input;
  std::string previous;
  const char* path() const override { return "/v1/responses"; }
  int64_t cached_tokens(const json::value& answer) const override {
    return answer.at_pointer("/usage/input_tokens_details/cached_tokens").as_int64();
  }
  json::object request() const override {
    json::object out{{"model", "m"},
                     {"instructions", "You are an agent."},
                     {"input", input},
                     {"reasoning", json::object{{"effort", "high"}, {"summary", "auto"}}},
                     {"tools",
                      json::array{json::object{
                          {"type", "function"}, {"name", "run"}, {"parameters", tool_schema()}}}}};
    if (!previous.empty()) {
      out["previous_response_id"] = previous;
    }
    return out;
  }
  std::vector<std::string> take(const json::value& answer) override {
    std::vector<std::string> ids;
    if (by_id_) {
      previous = std::string(answer.at("id").as_string());
      input.clear();
    }
    for (const json::value& item : answer.at("output").as_array()) {
      if (!by_id_) {
        input.push_back(item);
      }
      if (item.at("type") == "function_call") {
        ids.emplace_back(item.at("call_id").as_string());
      }
    }
    last_size_ = answer.at("output").as_array().size();
    return ids;
  }
  void add_results(const std::vector<std::string>& call_ids, int turn) override {
    for (const std::string& id : call_ids) {
      input.push_back(json::object{
          {"type", "function_call_output"}, {"call_id", id}, {"output", result_text(turn, id)}});
    }
  }
  void say(int turn) override {
    input.push_back(json::object{
        {"role", turn % 2 == 0 ? "user" : "developer"},
        {"content",
         json::array{json::object{{"type", "input_text"}, {"text", "Go on, please."}}}}});
    if (turn % 2 != 0) {
      input.push_back(json::object{{"role", "user"}, {"content", "Now."}});
    }
  }
  void lose_reasoning() override {
    if (!by_id_) {
      input.erase(input.end() - static_cast<std::ptrdiff_t>(last_size_));
    }
  }

 private:
  const bool by_id_;
  size_t last_size_ = 0;
};

constexpr int64_t kPromptStep = 128;  // resume points inside prompts lie on its multiples,
constexpr int64_t kTurnStep = 4;      // those at the ends of turns on multiples of this

void run_session(SessionClient& client, bool loses_reasoning, int32_t max_drafts = 0) {
  ScriptedApiOptions options;
  options.cache = true;
  options.max_drafts = max_drafts;
  options.max_context = 1 << 16;
  options.server.max_stored_responses = 4;
  ScriptedApi api(options);
  client.say(0);
  std::vector<int32_t> expected;  // the prompt of this turn begins with it
  int64_t least_cached = 0;
  bool is_exact = true;  // neither more nor less is cached
  for (int turn = 0; turn < kTurns; ++turn) {
    SCOPED_TRACE(turn);
    const std::string text = model_turn(turn);
    api.emit(text);
    const json::value answer = api.ok(client.path(), json::serialize(client.request()));
    ASSERT_FALSE(answer.as_object().empty());
    const std::vector<int32_t> prompt = api.last_prompt();
    ASSERT_GE(prompt.size(), expected.size());
    const auto differs = std::mismatch(expected.begin(), expected.end(), prompt.begin()).first;
    ASSERT_EQ(differs - expected.begin(), static_cast<std::ptrdiff_t>(expected.size()))
        << "expected: ..." << api.tokenizer->decode(std::vector<int32_t>(differs, expected.end()))
        << "\nis: ..."
        << api.tokenizer->decode(
               std::vector<int32_t>(prompt.begin() + (differs - expected.begin()), prompt.end()));
    const int64_t cached = client.cached_tokens(answer);
    EXPECT_GE(cached, least_cached);
    EXPECT_TRUE(!is_exact || cached == least_cached) << cached << " of " << least_cached;
    const std::vector<std::string> calls = client.take(answer);
    EXPECT_EQ(calls.size(), turn % 5 == 4 ? 0U : static_cast<size_t>(turn % 3) + 1);
    expected = prompt;
    if (loses_reasoning && turn % 7 == 3) {
      client.lose_reasoning();  // then only the prompt itself comes again
      expected.pop_back();      // <think> is followed at once by its end, or is not there
      least_cached = static_cast<int64_t>(prompt.size() - 1) / kPromptStep * kPromptStep;
      is_exact = false;  // what earlier turns left may reach further
    } else {
      const std::vector<int32_t> said = api.tokenizer->encode(text);
      expected.insert(expected.end(), said.begin(), said.end());
      expected.push_back(api.tokenizer->eos_id());
      const auto num_run = static_cast<int64_t>(expected.size()) - 1;  // the end has not
      least_cached = num_run / kTurnStep * kTurnStep;
      is_exact = true;
    }
    if (calls.empty()) {
      client.say(turn);
    } else {
      client.add_results(calls, turn);
    }
  }
}

TEST(SessionTest, ChatTurnsExtendWhatWasSent) {
  for (const bool loses : {false, true}) {
    ChatSession client;
    run_session(client, loses);
  }
}

TEST(SessionTest, MessagesTurnsExtendWhatWasSent) {
  for (const bool loses : {false, true}) {
    MessagesSession client;
    run_session(client, loses);
  }
}

TEST(SessionTest, ResponsesTurnsExtendWhatWasSent) {
  for (const bool loses : {false, true}) {
    ResponsesSession client(false);
    run_session(client, loses);
  }
}

TEST(SessionTest, DraftedTurnsExtendWhatWasSent) {
  ChatSession client;
  run_session(client, /*loses_reasoning=*/true, /*max_drafts=*/3);
}

TEST(SessionTest, ResponsesById) {
  ResponsesSession client(true);
  run_session(client, false);
}

}  // namespace
}  // namespace baleen::server
