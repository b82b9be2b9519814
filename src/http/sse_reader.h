#pragma once
// Cuts a stream of server-sent events into events, however the bytes arrive. A value of one thread.
//
//   SseReader reader;
//   reader.push(bytes, [](const SseEvent& event) { use(event.data); });

#include <functional>
#include <string>
#include <string_view>

namespace baleen::http {

struct SseEvent {
  std::string event;  // empty when the server gave none
  std::string data;   // data lines joined by line ends
};

class SseReader {
 public:
  void push(std::string_view bytes, const std::function<void(const SseEvent&)>& on_event);

 private:
  void take_line(std::string_view line, const std::function<void(const SseEvent&)>& on_event);
  std::string partial_line_;
  SseEvent event_;
  bool has_data_ = false;
};

}  // namespace baleen::http
