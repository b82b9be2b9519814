#include "apps/bench/load/load_client.h"

#include <string_view>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "http/sse_reader.h"

namespace baleen::apps {
namespace {

namespace json = boost::json;

double load_seconds(LoadClock::time_point from, LoadClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

http::ClientConfig load_client_config(const LoadTarget& target) {
  http::ClientConfig config;
  config.read_timeout =
      std::chrono::milliseconds(static_cast<int64_t>(target.options.timeout_s * 1000.0));
  config.headers = target.headers;
  return config;
}

const json::value* member(const json::value* value, std::string_view key) {
  return value != nullptr && value->is_object()
             ? value->as_object().if_contains(json::string_view(key.data(), key.size()))
             : nullptr;
}

std::string_view text_of(const json::value* value) {
  return value != nullptr && value->is_string()
             ? std::string_view(value->as_string().data(), value->as_string().size())
             : std::string_view();
}

int64_t count_of(const json::value* value) {
  return value != nullptr && value->is_int64() ? value->as_int64() : -1;
}

std::string shown_error(std::string_view body) {
  boost::system::error_code error;
  const json::value value = json::parse(json::string_view(body.data(), body.size()), error);
  if (!error) {
    const json::value* fault = member(&value, "error");
    std::string_view message = text_of(member(fault, "message"));
    message = message.empty() ? text_of(fault) : message;
    for (const char* key : {"message", "detail"}) {
      message = message.empty() ? text_of(member(&value, key)) : message;
    }
    if (!message.empty()) {
      return std::string(message);
    }
  }
  return std::string(body.substr(0, 200));
}

/// Takes the events of one stream.
struct LoadStream {
  LoadAnswer answer;
  LoadClock::time_point epoch;
  bool done = false;
  int64_t num_pieces = 0;

  void take(std::string_view data, LoadClock::time_point now) {
    LoadRecord& record = answer.record;
    if (data == "[DONE]") {
      done = true;
      return;
    }
    boost::system::error_code error;
    const json::value chunk = json::parse(json::string_view(data.data(), data.size()), error);
    if (error) {
      record.error = "an event of the stream is no JSON: " + error.message();
      return;
    }
    if (member(&chunk, "error") != nullptr) {
      record.error = shown_error(data);
      return;
    }
    take_usage(member(&chunk, "usage"));
    const json::value* choices = member(&chunk, "choices");
    if (choices == nullptr || !choices->is_array() || choices->as_array().empty()) {
      return;
    }
    const json::value* choice = &choices->as_array().front();
    // Some servers leave [DONE] out; that the stream is whole the HTTP client sees.
    done = done || !text_of(member(choice, "finish_reason")).empty();
    const json::value* delta = member(choice, "delta");
    const std::string_view content =
        delta != nullptr ? text_of(member(delta, "content")) : text_of(member(choice, "text"));
    bool has_news = !content.empty();
    for (const char* key : {"reasoning_content", "reasoning"}) {
      has_news = has_news || !text_of(member(delta, key)).empty();
    }
    const json::value* calls = member(delta, "tool_calls");
    has_news = has_news || (calls != nullptr && calls->is_array() && !calls->as_array().empty());
    if (!has_news) {
      return;
    }
    answer.text += content;
    ++num_pieces;
    const double at = load_seconds(epoch, now);
    if (record.first_s < 0.0) {
      record.first_s = at;
    } else {
      record.gaps_s.push_back(at - record.last_s);
    }
    record.last_s = at;
  }

  void take_usage(const json::value* usage) {
    const int64_t prompt = count_of(member(usage, "prompt_tokens"));
    if (prompt < 0) {
      return;
    }
    LoadRecord& record = answer.record;
    record.prompt_tokens = prompt;
    record.answer_tokens = count_of(member(usage, "completion_tokens"));
    record.cached_tokens =
        count_of(member(member(usage, "prompt_tokens_details"), "cached_tokens"));
  }
};

}  // namespace

LoadClient::LoadClient(const LoadTarget& target, LoadClock::time_point epoch)
    : target_(target), epoch_(epoch), client_(target.base, load_client_config(target)) {}

LoadAnswer LoadClient::run(const std::vector<LoadMessage>& messages, int32_t answer_tokens) {
  const http::ClientRequest request{"POST",
                                    target_.path(),
                                    {{"Content-Type", "application/json"}},
                                    load_body(target_, messages, answer_tokens)};
  LoadStream stream;
  stream.epoch = epoch_;
  LoadRecord& record = stream.answer.record;
  http::SseReader reader;
  record.begin_s = load_seconds(epoch_, LoadClock::now());
  const Result<http::Response> response = client_.stream(request, [&](std::string_view piece) {
    const LoadClock::time_point now = LoadClock::now();
    reader.push(piece, [&](const http::SseEvent& event) { stream.take(event.data, now); });
    return true;
  });
  record.end_s = load_seconds(epoch_, LoadClock::now());
  if (!response.ok()) {
    record.error = response.status().message;
  } else if (response->status != 200) {
    record.refused = response->status == 400 || response->status == 422;
    record.error = fmt::format("{}: {}", response->status, shown_error(response->body));
  } else if (record.error.empty() && !stream.done) {
    record.error = "the stream ended without finish_reason or [DONE]";
  }
  if (record.prompt_tokens < 0) {
    record.answer_tokens = stream.num_pieces;
  }
  record.ok = record.error.empty();
  return std::move(stream.answer);
}

}  // namespace baleen::apps
