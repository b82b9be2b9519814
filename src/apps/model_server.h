#pragma once
// A model folder served over HTTP in this process: engine and API server, started and stopped
// together. Owned by the command that serves.
//
//   ModelServer server(open_model(options), config);   // throws SystemError when it cannot bind
//   server.start();
//   server.drain();

#include <memory>
#include <string>

#include "apps/opened_model.h"
#include "apps/weight_receiver.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "server/api_server.h"
#include "server/server_config.h"

namespace baleen::apps {

class ModelServer {
 public:
  /// `config` without model name, path and chat profile takes those of the model.
  ModelServer(OpenedModel model, const std::string& folder, server::ServerConfig config);

  void start();
  /// See ApiServer::drain(). An update of the weights that is under way breaks off.
  bool drain();
  std::string url() const { return api_.url(); }
  engine::Engine& engine() { return engine_; }

 private:
  server::ServerConfig config_;
  MetricRegistry metrics_;
  engine::Engine engine_;
  std::shared_ptr<WeightReceiver> receiver_;  // shared with the API server
  server::ApiServer api_;
};

}  // namespace baleen::apps
