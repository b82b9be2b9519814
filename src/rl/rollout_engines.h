#pragma once
// The engines of a run: in this process over the trainer's own tensors, or over a copy where the
// rollouts compute in other formats, draw while the trainer steps, or the trainer's tensors are
// parts on several ranks; or servers that are asked over HTTP and sent the weights. One that failed
// is out until the next weights: then it is made anew, or the server is tried again. Owned by the
// run's loop, whose thread makes all calls while no request is open.
//
//   RolloutEngines engines(config, make_executor, tokenizer, rank, leaves, version);
//   RolloutManager manager(config, engines.all(), ...);
//   engines.publish(leaves, version + 1);
//   engines.stop();

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "engine/engine.h"
#include "rl/checked_publishers.h"
#include "rl/remote_engine.h"
#include "rl/rl_run.h"
#include "rl/rollout_engine.h"
#include "train/run_rank.h"

namespace baleen::rl {

class RolloutEngines {
 public:
  /// Starts them, or sends the servers the weights. `leaves`: of the whole model, which the first
  /// rank has (RunRank::whole); `rank` outlives the engines. Throws ConfigError when engine and
  /// trainer would compute by other contracts although exactness forbids it, Error when no server
  /// can be reached or one refuses the weights. `say` hears of engines that are out or back.
  RolloutEngines(const RlConfig& config,
                 const ExecutorMaker& make_executor,
                 const std::shared_ptr<const text::Tokenizer>& tokenizer,
                 train::RunRank& rank,
                 const model::ModelParameters& leaves,
                 int64_t version,
                 std::function<void(const std::string& line)> say);

  std::vector<RolloutEngine*> all() const;
  /// Null where all are servers.
  engine::Engine* first() const { return owned_.empty() ? nullptr : owned_.front().get(); }
  /// Brings every engine the weights; one that failed comes back with them. Throws Error naming
  /// what is not finite or what was refused, and when no engine is left.
  void publish(const model::ModelParameters& leaves, int64_t version);
  void stop();

 private:
  void start_local(const RlConfig& config,
                   const ExecutorMaker& make_executor,
                   const std::shared_ptr<const text::Tokenizer>& tokenizer,
                   train::RunRank& rank,
                   const model::ModelParameters& leaves,
                   int64_t version);
  void send_weights(int64_t version);

  const train::Masters& masters_;
  std::function<void(const std::string& line)> say_;
  std::string contract_;
  std::vector<std::unique_ptr<MetricRegistry>> registries_;  // one for each engine
  std::unique_ptr<WeightPublisher> publisher_;               // of the trainer's own tensors, or
  std::unique_ptr<CopyPublisher> copies_;                    // of copies
  std::function<std::unique_ptr<engine::Engine>(int64_t version)> make_;
  std::vector<std::unique_ptr<engine::Engine>> retired_;  // failed; who looks at one may go on
  std::vector<std::unique_ptr<engine::Engine>> owned_;
  std::vector<std::unique_ptr<LocalEngine>> local_;    // over owned_, in its order
  std::vector<std::unique_ptr<RemoteEngine>> remote_;  // instead of those
  int64_t first_version_ = 0;                          // that servers were sent
};

}  // namespace baleen::rl
