#pragma once
// One conversation with a chat server, turn by turn: sends the history, hands out the answer while
// it streams. A value of one thread.
//
//   Conversation conversation("http://127.0.0.1:30000", "");
//   conversation.say("What is 2 + 2?", [](Conversation::Part part, std::string_view text) {...});

#include <functional>
#include <string>
#include <string_view>

#include <boost/json/array.hpp>

#include "http/client.h"

namespace baleen::apps {

class Conversation {
 public:
  enum class Part { kReasoning, kAnswer };
  /// False stops the answer; what came so far is kept.
  using OnText = std::function<bool(Part part, std::string_view text)>;

  /// Asks the server for its model. Throws Error when it does not answer.
  Conversation(const std::string& url, const std::string& api_key);

  const std::string& model() const { return model_; }
  void set_system(const std::string& text) { system_ = text; }
  void set_thinking(bool on) { thinking_ = on; }
  bool thinking() const { return thinking_; }
  void reset() { messages_.clear(); }

  /// Throws Error with the server's message; the history is then as before.
  void say(const std::string& text, const OnText& on_text);

 private:
  http::Client client_;
  std::string model_;
  std::string system_;
  bool thinking_ = false;
  boost::json::array messages_;
};

}  // namespace baleen::apps
