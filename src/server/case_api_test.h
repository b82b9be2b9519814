#pragma once
// For tests: the fault cases of tests/cases as requests to the scripted API, and answers in the
// terms of the cases.
//
//   const json::value fault = read_case("H08_completion_to_message");
//   CaseAnswer answer = whole(chat_request(user_says("go")));

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {

inline json::value read_case(const std::string& name) {
  return read_json_file("tests/cases/" + name + ".json");
}

/// A chat request of model m with these messages and the further fields of `more`.
inline json::object chat_request(json::value messages, const json::value* more = nullptr) {
  json::object request{{"model", "m"}, {"messages", std::move(messages)}};
  if (more != nullptr) {
    for (const auto& member : more->as_object()) {
      request[member.key()] = member.value();
    }
  }
  return request;
}

inline json::array user_says(const char* text) {
  return {json::object{{"role", "user"}, {"content", text}}};
}

inline json::object thinking(bool on) {
  return {{"type", on ? "enabled" : "disabled"}};
}

inline std::vector<std::string> strings_of(const json::value& list) {
  std::vector<std::string> strings;
  for (const json::value& entry : list.as_array()) {
    strings.emplace_back(entry.as_string());
  }
  return strings;
}

/// An answer in the terms of the cases, made from a whole response or joined from a stream.
struct CaseAnswer {
  std::string reasoning;
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  std::string finish_reason;
};

class CasesTest : public testing::Test {
 protected:
  ScriptedApi api;

  void emit_text(const std::string& text, const std::string& finish) {
    // "stop" scripts carry their end token in the text.
    api.emit(text, finish == "length" ? engine::ScriptEnd::kLength : engine::ScriptEnd::kStop);
  }
  CaseAnswer whole(const json::object& request) {
    const json::value body = api.ok(kChatPath, json::serialize(request));
    CaseAnswer answer;
    if (!body.as_object().contains("choices")) {
      return answer;
    }
    const json::value& choice = body.at("choices").at(0);
    const json::object& message = choice.at("message").as_object();
    const auto text_of = [&](const char* name) {
      const json::value& value = message.at(name);
      return value.is_null() ? std::string() : std::string(value.as_string());
    };
    answer.reasoning = text_of("reasoning_content");
    answer.content = text_of("content");
    answer.finish_reason = std::string(choice.at("finish_reason").as_string());
    if (const json::value* calls = message.if_contains("tool_calls")) {
      for (const json::value& call : calls->as_array()) {
        answer.calls.emplace_back(call.at("function").at("name").as_string(),
                                  call.at("function").at("arguments").as_string());
      }
    }
    return answer;
  }
  JoinedChoice streamed(json::object request) {
    request["stream"] = true;
    const StreamedEvents events = api.stream(kChatPath, json::serialize(request));
    EXPECT_EQ(events.status, 200) << events.error_body;
    EXPECT_TRUE(events.done);
    EXPECT_TRUE(events.after_done.empty());
    return join_choice(events.chunks);
  }
};

}  // namespace baleen::server
