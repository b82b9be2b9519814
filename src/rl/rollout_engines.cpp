#include "rl/rollout_engines.h"

#include <algorithm>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "model/contract.h"
#include "rl/numeric_cell.h"

namespace baleen::rl {
namespace {

constexpr int32_t kQueuedAnswers = 1 << 20;
constexpr int64_t kAskedAtOnce = 64;           // answers, of one server
constexpr int64_t kHttpBucketBytes = 8 << 20;  // below what a server takes at once

/// The same tensors without gradients.
model::ModelParameters read_only(const model::ModelParameters& leaves) {
  model::ModelParameters out = leaves;
  model::for_each_parameter(out, [](const model::ParameterInfo&, at::Tensor& value) {
    value = value.defined() ? value.detach() : value;
  });
  return out;
}

model::ModelParameters copied(const model::ModelParameters& leaves) {
  model::ModelParameters out = leaves;
  model::for_each_parameter(out, [](const model::ParameterInfo&, at::Tensor& value) {
    value = value.defined() ? value.detach().clone() : value;
  });
  return out;
}

/// Engine and trainer must compute alike, but where they are meant not to.
void check_contract(const RlConfig& config,
                    const std::string& engines,
                    const std::string& trainers) {
  if (config.exactness != "off" && engines != trainers) {
    throw ConfigError(
        fmt::format("exactness {}: the engine computes by contract {}, the trainer by {}; see "
                    "baleen rl parity, or set --exactness off",
                    config.exactness,
                    engines,
                    trainers));
  }
}

engine::EngineConfig engine_config(const RlConfig& config,
                                   const text::Tokenizer& tokenizer,
                                   int64_t version) {
  engine::EngineConfig out = engine::EngineConfig::for_tokenizer(tokenizer);
  out.max_running = static_cast<int32_t>(config.max_running);
  out.max_queued = kQueuedAnswers;
  out.max_prefills = static_cast<int32_t>(config.max_running);
  out.weight_version = std::to_string(version);
  return out;
}

}  // namespace

RolloutEngines::RolloutEngines(const RlConfig& config,
                               const ExecutorMaker& make_executor,
                               const std::shared_ptr<const text::Tokenizer>& tokenizer,
                               train::RunRank& rank,
                               const model::ModelParameters& leaves,
                               int64_t version,
                               std::function<void(const std::string&)> say)
    : masters_(rank.trainer().masters()), say_(std::move(say)) {
  if (config.rollout_url.empty()) {
    start_local(config, make_executor, tokenizer, rank, leaves, version);
    return;
  }
  contract_ = model::contract_digest(read_only(leaves), rank.trainer().config().objective.numerics);
  const RemoteOptions options{
      .threads = std::min(config.max_running, kAskedAtOnce),
      .end_token_ids = engine_config(config, *tokenizer, version).end_token_ids};
  for (const std::string& url : config.rollout_url) {
    remote_.push_back(std::make_unique<RemoteEngine>(url, options));
  }
  first_version_ = version;
  send_weights(version);
}

void RolloutEngines::start_local(const RlConfig& config,
                                 const ExecutorMaker& make_executor,
                                 const std::shared_ptr<const text::Tokenizer>& tokenizer,
                                 train::RunRank& rank,
                                 const model::ModelParameters& leaves,
                                 int64_t version) {
  const bool rounded = config.rollout_quant != "none";
  // Engines that draw while the trainer steps may not see its tensors change.
  const bool ahead = config.async == "one-step";
  const model::ModelParameters served = rounded ? numeric_side(leaves, config.rollout_quant).params
                                        : ahead ? copied(leaves)
                                                : read_only(leaves);
  make_ = [this, &config, make_executor, tokenizer, served](int64_t of_version) {
    auto engine = std::make_unique<engine::Engine>(
        engine_config(config, *tokenizer, of_version),
        make_executor(served, config),
        tokenizer,
        *registries_.emplace_back(std::make_unique<MetricRegistry>()));
    engine->start();
    return engine;
  };
  for (int64_t i = 0; i < config.rollout_engines; ++i) {
    owned_.push_back(make_(version));
    local_.push_back(std::make_unique<LocalEngine>(*owned_.back()));
  }
  contract_ = first()->executor_info().contract;
  check_contract(config,
                 contract_,
                 model::contract_digest(served, rank.trainer().config().objective.numerics));
  if (rounded || ahead || rank.mesh_trainer() != nullptr) {
    copies_ = std::make_unique<CopyPublisher>(
        rounded ? config.rollout_quant : std::string("f32"), served, contract_);
  } else {
    publisher_ = std::make_unique<SharedPublisher>(masters_, contract_);
  }
}

std::vector<RolloutEngine*> RolloutEngines::all() const {
  std::vector<RolloutEngine*> out;
  for (const auto& engine : local_) {
    out.push_back(engine.get());
  }
  for (const auto& engine : remote_) {
    out.push_back(engine.get());
  }
  return out;
}

void RolloutEngines::publish(const model::ModelParameters& leaves, int64_t version) {
  if (!remote_.empty()) {
    send_weights(version);
    return;
  }
  if (copies_) {
    copies_->take(leaves);
  }
  WeightPublisher& publisher = copies_ ? *copies_ : *publisher_;
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    if (!owned_[i]->healthy()) {
      say_(fmt::format("engine {} failed and is made anew: {}", i, owned_[i]->health_message()));
      retired_.push_back(std::exchange(owned_[i], make_(version - 1)));
      local_[i]->replace(*owned_[i]);
    }
    publisher.publish(*owned_[i], version);
  }
}

/// To all servers at once: each has a stream of its own from the resting masters.
void RolloutEngines::send_weights(int64_t version) {
  std::vector<std::exception_ptr> faults(remote_.size());
  std::vector<bool> was_out;
  for (const auto& engine : remote_) {
    was_out.push_back(version > first_version_ && !engine->healthy());
    if (was_out.back()) {
      say_(engine->health_message());
    }
  }
  {
    std::vector<std::jthread> senders;
    for (std::size_t i = 0; i < remote_.size(); ++i) {
      senders.emplace_back([&, i] {
        try {
          train::MasterStream stream(masters_,
                                     {.contract = contract_,
                                      .version = version,
                                      .verify = verify_of_publish(version - first_version_),
                                      .bucket_bytes = kHttpBucketBytes});
          remote_[i]->publish(stream, version);
        } catch (...) {
          faults[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& fault : faults) {
    if (fault) {
      std::rethrow_exception(fault);
    }
  }
  for (std::size_t i = 0; i < remote_.size(); ++i) {
    if (was_out[i]) {
      say_(
          fmt::format("{} is {}", remote_[i]->url(), remote_[i]->healthy() ? "back" : "still out"));
    }
  }
  const auto healthy = [](const auto& engine) { return engine->healthy(); };
  if (std::none_of(remote_.begin(), remote_.end(), healthy)) {
    throw Error(
        fmt::format("no server took weights {}: {}", version, remote_[0]->health_message()));
  }
}

void RolloutEngines::stop() {
  for (const auto& engine : owned_) {
    engine->stop();
  }
}

}  // namespace baleen::rl
