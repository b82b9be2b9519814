#include "apps/chat/conversation.h"

#include <utility>

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "base/error.h"
#include "http/sse_reader.h"

namespace baleen::apps {

namespace json = boost::json;

namespace {

http::ClientConfig client_config(const std::string& api_key) {
  http::ClientConfig config;
  if (!api_key.empty()) {
    config.headers.add("Authorization", "Bearer " + api_key);
  }
  return config;
}

[[noreturn]] void fail(const http::Response& response) {
  json::error_code error;
  const json::value body = json::parse(response.body, error);
  const json::object* object = error ? nullptr : body.if_object();
  const json::value* detail = object != nullptr ? object->if_contains("error") : nullptr;
  throw Error(detail != nullptr && detail->is_object()
                  ? std::string(detail->at("message").as_string())
                  : "the server answered with status " + std::to_string(response.status));
}

/// What one event adds to the answer.
struct Answer {
  std::string reasoning;
  std::string content;
  std::string error;
};

bool take_event(const std::string& data, const Conversation::OnText& on_text, Answer& answer) {
  if (data == "[DONE]") {
    return true;
  }
  const json::object event = json::parse(data).as_object();
  if (const json::value* error = event.if_contains("error")) {
    answer.error = std::string(error->at("message").as_string());
    return false;
  }
  bool go_on = true;
  for (const json::value& choice : event.at("choices").as_array()) {
    const json::object& delta = choice.at("delta").as_object();
    const auto take = [&](const char* name, Conversation::Part part, std::string& all) {
      const json::value* text = delta.if_contains(name);
      if (text != nullptr && text->is_string() && !text->get_string().empty()) {
        all += text->get_string();
        go_on = on_text(part, text->get_string()) && go_on;
      }
    };
    take("reasoning_content", Conversation::Part::kReasoning, answer.reasoning);
    take("content", Conversation::Part::kAnswer, answer.content);
  }
  return go_on;
}

}  // namespace

Conversation::Conversation(const std::string& url, const std::string& api_key)
    : client_(url, client_config(api_key)) {
  const Result<http::Response> answer = client_.get("/v1/models");
  if (!answer.ok()) {
    throw Error(answer.status().message);
  }
  if (answer->status != 200) {
    fail(*answer);
  }
  model_ = std::string(json::parse(answer->body).at("data").at(0).at("id").as_string());
}

void Conversation::say(const std::string& text, const OnText& on_text) {
  json::array messages;
  if (!system_.empty()) {
    messages.push_back(json::object{{"role", "system"}, {"content", system_}});
  }
  messages.insert(messages.end(), messages_.begin(), messages_.end());
  const json::object question{{"role", "user"}, {"content", text}};
  messages.push_back(question);
  const json::object body{{"model", model_},
                          {"messages", std::move(messages)},
                          {"stream", true},
                          {"thinking", json::object{{"type", thinking_ ? "enabled" : "disabled"}}}};
  const http::ClientRequest request{"POST",
                                    "/v1/chat/completions",
                                    {{"Content-Type", "application/json"}},
                                    json::serialize(body)};
  http::SseReader reader;
  Answer answer;
  bool go_on = true;
  const Result<http::Response> response = client_.stream(request, [&](std::string_view piece) {
    reader.push(piece, [&](const http::SseEvent& event) {
      go_on = go_on && take_event(event.data, on_text, answer);
    });
    return go_on;
  });
  if (!response.ok()) {
    throw Error(response.status().message);
  }
  if (response->status != 200) {
    fail(*response);
  }
  if (!answer.error.empty()) {
    throw Error(answer.error);
  }
  messages_.push_back(question);
  messages_.push_back(json::object{
      {"role", "assistant"}, {"content", answer.content}, {"reasoning_content", answer.reasoning}});
}

}  // namespace baleen::apps
