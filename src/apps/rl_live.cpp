#include "apps/rl_live.h"

#include <array>
#include <string_view>

#include <fmt/format.h>

namespace baleen::apps {
namespace {

constexpr std::string_view kStep = "train/step";
/// What one wants to see grow or stay: a page of all names would hide them.
constexpr std::array<std::string_view, 8> kShown = {"rollout/raw_reward",
                                                    "rollout/response_len/mean",
                                                    "rollout/entropy",
                                                    "rollout/kept_groups",
                                                    "train/grad_norm",
                                                    "drift/mean_abs",
                                                    "perf/rollout_time",
                                                    "perf/train_time"};

bool is_shown(std::string_view name) {
  constexpr std::string_view kEvaluation = "eval/";
  for (const std::string_view wanted : kShown) {
    if (name == wanted) {
      return true;
    }
  }
  return name.starts_with(kEvaluation);
}

}  // namespace

RlLive::RlLive(int port) {
  config_.port = port;
  const http::Server probe(config_, {}, {});
}

void RlLive::add_to(rl::RlEvents& events) {
  events.watch = [this, say = events.say](engine::Engine& engine) {
    auto server = std::make_shared<server::LiveServer>(config_, engine);
    server->start();
    if (say) {
      say(fmt::format("live view: {}", server->url()));
    }
    server_ = server;
    return server;
  };
  events.on_metrics = [this](const policy::Metrics& line) { show(line); };
}

void RlLive::show(const policy::Metrics& line) {
  const std::shared_ptr<server::LiveServer> server = server_.lock();
  if (!server) {
    return;
  }
  double step = 0.0;
  for (const auto& [name, value] : line) {
    if (name == kStep) {
      step = value;
    } else if (is_shown(name)) {
      server->series().add(name, step, value);
    }
  }
}

}  // namespace baleen::apps
