#pragma once
// The engines of a run: over the trainer's own tensors, or over a copy where the rollouts compute
// in other formats or the trainer's tensors are parts on several ranks. Owned by the run's loop,
// whose thread makes all calls while no request is open.
//
//   RolloutEngines engines(config, make_executor, tokenizer, rank, leaves, version);
//   RolloutManager manager(config, engines.all(), ...);
//   engines.publish(leaves, version + 1);
//   engines.stop();

#include <cstdint>
#include <memory>
#include <vector>

#include "base/metrics.h"
#include "engine/engine.h"
#include "rl/checked_publishers.h"
#include "rl/rl_run.h"
#include "train/run_rank.h"

namespace baleen::rl {

class RolloutEngines {
 public:
  /// Starts them. `leaves`: of the whole model, which the first rank has (RunRank::whole);
  /// `rank` outlives the engines. Throws ConfigError when engine and trainer would compute by
  /// other contracts although exactness forbids it.
  RolloutEngines(const RlConfig& config,
                 const ExecutorMaker& make_executor,
                 const std::shared_ptr<const text::Tokenizer>& tokenizer,
                 train::RunRank& rank,
                 const model::ModelParameters& leaves,
                 int64_t version);

  std::vector<engine::Engine*> all() const;
  engine::Engine& first() const { return *engines_.front(); }
  /// Brings every engine the weights. Throws Error naming what is not finite or what was refused.
  void publish(const model::ModelParameters& leaves, int64_t version);
  void stop();

 private:
  std::vector<std::unique_ptr<MetricRegistry>> registries_;  // one for each engine
  std::unique_ptr<WeightPublisher> publisher_;               // of the trainer's own tensors, or
  std::unique_ptr<CopyPublisher> copies_;                    // of copies
  std::vector<std::unique_ptr<engine::Engine>> engines_;
};

}  // namespace baleen::rl
