#include "rl/remote_engine.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "http/client.h"
#include "weights/weight_frames.h"

namespace baleen::rl {
namespace {

namespace json = boost::json;

constexpr std::size_t kShownBytes = 300;  // of an answer in an error

/// The server is not there or not able: another one may be.
bool is_gone(const Result<http::Response>& answer) {
  return !answer.ok() || answer->status >= 500;
}

/// It was started anew, or another sender began, since our manifest: what it has of ours is
/// nothing.
bool has_forgotten(const Result<http::Response>& answer) {
  if (!answer.ok() || answer->status == 200) {
    return false;
  }
  boost::system::error_code error;
  const json::value body = json::parse(answer->body, error);
  const json::value* code = error ? nullptr : body.find_pointer("/error/code", error);
  const json::string* text = code == nullptr ? nullptr : code->if_string();
  return text != nullptr && std::string_view(*text) == weights::kUpdateNotOpen;
}

std::string told(const Result<http::Response>& answer) {
  return answer.ok()
             ? fmt::format("HTTP {}: {}", answer->status, answer->body.substr(0, kShownBytes))
             : answer.status().message;
}

engine::OutputEvent failed_event(StatusCode code, std::string message) {
  engine::OutputEvent event;
  event.finish.emplace();
  event.finish->reason = engine::FinishReason::kError;
  event.finish->error = {code, std::move(message), {}, {}};
  return event;
}

uint64_t number_of_update(const std::string& answer) {
  boost::system::error_code error;
  const json::value value = json::parse(answer, error);
  const json::object* object = error ? nullptr : value.if_object();
  const json::value* number = object == nullptr ? nullptr : object->if_contains("update");
  const auto update = number == nullptr ? 0 : number->to_number<uint64_t>(error);
  if (number == nullptr || error) {
    throw Error("the server opened no update: " + answer.substr(0, kShownBytes));
  }
  return update;
}

}  // namespace

std::string generate_body(const engine::GenerationRequest& request) {
  json::object sampling{{"temperature", static_cast<double>(request.sampling.temperature)},
                        {"max_new_tokens", request.max_new_tokens},
                        {"skip_special_tokens", false}};
  if (request.sampling.seed) {
    sampling["sampling_seed"] = *request.sampling.seed;
  }
  return json::serialize(
      json::object{{"input_ids", json::array(request.prompt.begin(), request.prompt.end())},
                   {"rid", request.id},
                   {"return_logprob", request.want_logprobs},
                   {"sampling_params", std::move(sampling)}});
}

engine::OutputEvent read_generated(std::string_view answer, const std::string& version) {
  engine::OutputEvent event;
  try {
    const json::value value = json::parse(answer);
    const json::object& meta = value.at("meta_info").as_object();
    const std::string found(meta.at("weight_version").as_string());
    if (found != version) {
      throw Error(
          fmt::format("the server answered with weights {} where {} were sent", found, version));
    }
    const json::array& ids = value.at("output_ids").as_array();
    const json::value* logprobs = meta.if_contains("output_token_logprobs");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      engine::GeneratedToken& token = event.tokens.emplace_back();
      token.id = ids[i].to_number<int32_t>();
      if (logprobs != nullptr) {
        token.logprob = static_cast<float>(logprobs->at(i).at(0).to_number<double>());
      }
    }
    const json::object& reason = meta.at("finish_reason").as_object();
    const std::string_view type = reason.at("type").as_string();
    event.finish.emplace();
    event.finish->cached_tokens = meta.at("cached_tokens").to_number<int64_t>();
    if (type == "stop") {
      event.finish->reason = engine::FinishReason::kStop;
    } else if (type == "length") {
      event.finish->reason = engine::FinishReason::kLength;
    } else {
      event.finish->reason = engine::FinishReason::kAbort;
      event.finish->error = {
          StatusCode::kCancelled, fmt::format("the server ended it with {}", type), {}, {}};
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // of the parser, or a member that is not there
    throw Error(fmt::format(
        "no answer to /generate: {} ({})", answer.substr(0, kShownBytes), error.what()));
  }
  return event;
}

RemoteEngine::RemoteEngine(std::string url, RemoteOptions options)
    : url_(std::move(url)), options_(std::move(options)) {
  const http::Client checked(url_, {});  // refuses what is no address
  for (int64_t i = 0; i < options_.threads; ++i) {
    workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

RemoteEngine::~RemoteEngine() {
  for (std::jthread& worker : workers_) {
    worker.request_stop();
  }
  const std::lock_guard lock(mutex_);  // who asks from now on sees that it is to stop
  for (const auto& [client, asked] : asked_) {
    client->cancel();
  }
}

bool RemoteEngine::healthy() const {
  const std::lock_guard lock(mutex_);
  return fault_.empty();
}

std::string RemoteEngine::health_message() const {
  const std::lock_guard lock(mutex_);
  return fault_.empty() ? std::string() : fmt::format("{}: {}", url_, fault_);
}

/// In one step with `reason`, so that no answer is broken off that was asked of a server that got
/// weights meanwhile.
void RemoteEngine::lose(const std::string& reason, UnderWay under_way) {
  std::deque<Job> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (fault_.empty()) {
      fault_ = reason;
    }
    dropped = std::exchange(waiting_, {});
    if (under_way == UnderWay::kBreakOff) {
      for (auto& [client, asked] : asked_) {
        asked.broken_off = fmt::format("{}: {}", url_, fault_);
        client->cancel();
      }
    }
  }
  for (Job& job : dropped) {
    job.sink->on_event(failed_event(StatusCode::kUnavailable, reason));
  }
}

bool RemoteEngine::publish(weights::WeightSource& source, int64_t version) {
  http::Client client(url_, {});
  const auto is_out = [](const Result<http::Response>& answer) {
    return is_gone(answer) || has_forgotten(answer);
  };
  const auto send = [&](const char* path, std::string body) {
    http::ClientRequest request{.method = "POST", .target = path, .headers = {}, .body = {}};
    request.headers.add("Content-Type", "application/octet-stream");
    request.body = std::move(body);
    Result<http::Response> answer = client.send(request);
    if (!is_out(answer) && answer->status != 200) {
      throw Error(fmt::format("publishing weights {} to {}: {}", version, url_, told(answer)));
    }
    return answer;
  };
  Result<http::Response> answer =
      send("/weights/begin", weights::manifest_message(source.manifest()));
  if (!is_out(answer)) {
    const uint64_t update = number_of_update(answer->body);
    while (!is_out(answer)) {
      const std::optional<weights::WeightBucket> bucket = source.next();
      if (!bucket) {
        answer = send("/weights/end",
                      weights::end_message({.update = update,
                                            .root = source.root(),
                                            .value_digests = source.value_digests()}));
        break;
      }
      answer = send("/weights/bucket", weights::bucket_message(update, *bucket));
    }
  }
  if (is_out(answer)) {
    lose(fmt::format("weights {} did not reach it: {}", version, told(answer)));
    return false;
  }
  const std::lock_guard lock(mutex_);
  fault_.clear();
  version_ = std::to_string(version);
  return true;
}

Status RemoteEngine::submit(engine::GenerationRequest request,
                            std::shared_ptr<engine::OutputSink> sink) {
  const std::lock_guard lock(mutex_);
  if (!fault_.empty()) {
    return {StatusCode::kUnavailable, fault_, {}, {}};
  }
  waiting_.push_back({std::move(request), std::move(sink)});
  changed_.notify_one();
  return {};
}

void RemoteEngine::abort(std::string_view id) {
  {
    std::unique_lock lock(mutex_);
    const auto found = std::find_if(
        waiting_.begin(), waiting_.end(), [&](const Job& job) { return job.request.id == id; });
    if (found != waiting_.end()) {
      Job job = std::move(*found);
      waiting_.erase(found);
      lock.unlock();
      engine::OutputEvent event = failed_event(StatusCode::kCancelled, "aborted");
      event.finish->reason = engine::FinishReason::kAbort;
      job.sink->on_event(std::move(event));
      return;
    }
    const auto asked = std::find_if(
        asked_.begin(), asked_.end(), [&](const auto& entry) { return entry.second.id == id; });
    if (asked == asked_.end()) {
      return;
    }
    if (!fault_.empty()) {
      asked->second.broken_off = fmt::format("{}: {}", url_, fault_);
      asked->first->cancel();
      return;
    }
  }
  http::ClientConfig config;
  config.read_timeout = options_.abort_timeout;
  http::Client client(url_, std::move(config));
  const auto told_server =
      client.post("/abort_request", json::serialize(json::object{{"rid", id}}));
  if (is_gone(told_server)) {
    lose(told(told_server), UnderWay::kBreakOff);
  }
}

void RemoteEngine::work(const std::stop_token& stop) {
  std::optional<http::Client> client;
  while (true) {
    Job job;
    std::string version;
    if (!client) {
      client.emplace(url_, http::ClientConfig{});
    }
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !waiting_.empty(); })) {
        return;
      }
      job = std::move(waiting_.front());
      waiting_.pop_front();
      asked_.emplace(&*client, Asked{.id = job.request.id, .broken_off = {}});
      if (stop.stop_requested()) {
        client->cancel();
      }
      version = version_;
    }
    const Result<http::Response> answer = client->post("/generate", generate_body(job.request));
    std::string broken_off;
    {
      const std::lock_guard lock(mutex_);
      broken_off = std::move(asked_.extract(&*client).mapped().broken_off);
    }
    if (!answer.ok() && answer.status().code == StatusCode::kCancelled) {
      client.reset();
      job.sink->on_event(stop.stop_requested()
                             ? failed_event(StatusCode::kCancelled, told(answer))
                             : failed_event(StatusCode::kUnavailable, broken_off));
      continue;
    }
    if (is_gone(answer)) {
      lose(told(answer));  // before the event: whoever gets it looks elsewhere
      job.sink->on_event(failed_event(StatusCode::kUnavailable, told(answer)));
      continue;
    }
    engine::OutputEvent event;
    try {
      event = answer->status == 200 ? read_generated(answer->body, version)
                                    : failed_event(StatusCode::kInvalidArgument, told(answer));
    } catch (const Error& error) {
      lose(error.what());  // it was started anew, or has somebody else's weights
      event = failed_event(StatusCode::kUnavailable, error.what());
    }
    job.sink->on_event(std::move(event));
  }
}

}  // namespace baleen::rl
