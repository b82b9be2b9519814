#include "apps/model_server.h"

#include <utility>

#include "base/log.h"

namespace baleen::apps {
namespace {

server::ServerConfig completed(server::ServerConfig config,
                               const OpenedModel& model,
                               const std::string& folder) {
  if (config.model_name.empty()) {
    config.model_name = model.name;
  }
  config.model_path = folder;
  config.chat_profile = model.chat_profile.profile;
  return config;
}

server::ServerConfig with_receiver(server::ServerConfig config,
                                   std::shared_ptr<server::WeightStreams> receiver) {
  config.weight_streams = std::move(receiver);
  return config;
}

}  // namespace

ModelServer::ModelServer(OpenedModel model, const std::string& folder, server::ServerConfig config)
    : config_(completed(std::move(config), model, folder)),
      metrics_({{"model_name", config_.model_name}}),
      engine_(model.engine_config, std::move(model.executor), model.tokenizer, metrics_),
      receiver_(std::make_shared<WeightReceiver>(engine_)),
      api_(with_receiver(config_, receiver_), engine_, model.tokenizer, metrics_) {
  const engine::ExecutorInfo info = engine_.executor_info();
  const engine::ExecutorCapacity capacity = engine_.stats().capacity;
  log::info("apps",
            "serving model={} chat_profile={} default_thinking={} numerics=\"{}\"",
            config_.model_name,
            server::chat_profile_name(config_.chat_profile),
            config_.default_thinking,
            info.numerics);
  log::info("apps",
            "capacity slots={} context={} step_tokens={} weight_mib={:.1f} "
            "state_bytes_per_token={}",
            capacity.num_slots,
            capacity.max_context,
            capacity.max_step_tokens,
            static_cast<double>(info.weight_bytes) / (1 << 20),
            info.state_bytes_per_token);
  if (capacity.cache) {
    const cache::SequenceCacheOptions& cache = *capacity.cache;
    log::info("apps",
              "prefix cache tokens={} window_pages={} resume_points={} resume granularity: {}",
              int64_t{cache.sizes.full_pages} * cache.geometry.page_tokens,
              cache.sizes.swa_pages,
              cache.sizes.checkpoint_slots,
              cache::resume_granularity(cache.geometry));
  }
}

void ModelServer::start() {
  engine_.start();
  api_.start();
}

bool ModelServer::drain() {
  receiver_->stop();
  return api_.drain();
}

}  // namespace baleen::apps
