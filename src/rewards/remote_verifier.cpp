#include "rewards/remote_verifier.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "http/client.h"
#include "rewards/external_verifier.h"

namespace baleen::rewards {
namespace {

using RemoteClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLongestPause{5'000};

milliseconds time_left(const CallLimits& limits) {
  return std::chrono::duration_cast<milliseconds>(limits.deadline - RemoteClock::now());
}

/// The client adds its own path to the target, and a bare host needs one.
std::string target_of(const std::string& url) {
  const size_t host = url.find("://");
  const bool has_path = host != std::string::npos && url.find('/', host + 3) != std::string::npos &&
                        url.back() != '/';
  return has_path ? "" : "/";
}

bool worth_retrying(const Result<http::Response>& response) {
  return !response.ok() || response->status == 429 || response->status >= 500;
}

}  // namespace

RemoteVerifier::RemoteVerifier(RemoteConfig config) : config_(std::move(config)) {
  if (config_.url.empty()) {
    throw ConfigError("rm_type remote_rm needs rm_url");
  }
  const http::Client checked(config_.url, {});
}

RemoteVerifier::~RemoteVerifier() = default;

Result<Score> RemoteVerifier::verify(const RewardInput& input, const CallLimits& limits) const {
  const std::string body = reward_request_json(input);
  milliseconds pause = config_.first_pause;
  Status last{StatusCode::kUnavailable, "no time was left to ask the reward service", {}, {}};
  for (int32_t attempt = 0; attempt <= config_.max_retries; ++attempt) {
    const milliseconds left = time_left(limits);
    if (left.count() <= 0) {
      break;
    }
    http::ClientConfig client_config;
    client_config.connect_timeout = std::min(client_config.connect_timeout, left);
    client_config.read_timeout = left;
    client_config.max_response_bytes = int64_t{16} << 20;
    http::Client client(config_.url, std::move(client_config));
    const Result<http::Response> response = client.post(target_of(config_.url), body);
    if (response.ok() && response->status == 200) {
      return read_reward_answer(response->body);
    }
    last = response.ok() ? Status{StatusCode::kInternal,
                                  fmt::format("the reward service answered {}: {}",
                                              response->status,
                                              response->body.substr(0, 200)),
                                  {},
                                  {}}
                         : response.status();
    if (!worth_retrying(response)) {
      return last;
    }
    if (attempt < config_.max_retries) {
      std::this_thread::sleep_for(std::min(pause, std::max(time_left(limits), milliseconds(0))));
      pause = std::min(2 * pause, kLongestPause);
    }
  }
  return last;
}

}  // namespace baleen::rewards
