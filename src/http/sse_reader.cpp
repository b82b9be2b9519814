#include "http/sse_reader.h"

namespace baleen::http {

void SseReader::push(std::string_view bytes, const std::function<void(const SseEvent&)>& on_event) {
  while (true) {
    const size_t line_end = bytes.find('\n');
    if (line_end == std::string_view::npos) {
      partial_line_ += bytes;
      return;
    }
    partial_line_ += bytes.substr(0, line_end);
    bytes.remove_prefix(line_end + 1);
    if (partial_line_.ends_with('\r')) {
      partial_line_.pop_back();
    }
    const std::string line = std::move(partial_line_);
    partial_line_.clear();
    take_line(line, on_event);
  }
}

void SseReader::take_line(std::string_view line,
                          const std::function<void(const SseEvent&)>& on_event) {
  if (line.empty()) {
    if (has_data_) {
      on_event(event_);
    }
    event_ = {};
    has_data_ = false;
    return;
  }
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  std::string_view value =
      colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) {
    value.remove_prefix(1);
  }
  if (name == "data") {
    if (has_data_) {
      event_.data += '\n';
    }
    event_.data += value;
    has_data_ = true;
  } else if (name == "event") {
    event_.event = value;
  }
}

}  // namespace baleen::http
