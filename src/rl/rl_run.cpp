#include "rl/rl_run.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/error.h"
#include "rl/reward_judge.h"
#include "rl/run_loop.h"
#include "rl/warm_up.h"
#include "train/mesh_options.h"
#include "train/published.h"
#include "train/train_checkpoint.h"

namespace baleen::rl {
namespace {

/// A verifier that does not work is told before the warm-up, not behind it.
void try_verifiers(const RlConfig& config) {
  make_judge(config, config.rm_type);
  if (!config.eval_rm_type.empty()) {
    make_judge(config, config.eval_rm_type);
  }
}

/// Ranks take the warm-up's moments from a checkpoint before the first rollout.
void save_start(const RlConfig& config, PolicyStart start, const train::RunSettings& settings) {
  const std::unique_ptr<train::RunRank> rank = start.single_rank();
  train::SaveOptions options = save_options(config, settings);
  options.extra_files[kDataFile] = encode_batch({}, {});
  train::save_checkpoint(checkpoint_root(config), rank->trainer(), options);
}

RlSummary run_ranks(const RlConfig& config,
                    const ExecutorMaker& make_executor,
                    const RlEvents& events) {
  const RunInputs inputs = open_inputs(config);
  SharedBatch shared;
  PolicyStart start = policy_start(config);
  if (train::mesh_shape(config).world_size() == 1) {
    const std::unique_ptr<train::RunRank> rank = start.single_rank();
    return RunLoop(config, make_executor, events, inputs, *rank, shared).run();
  }
  train::check_mesh(config, start.params.config, config.global_batch_size);
  if (train::saved_step(checkpoint_root(config)) < 0) {
    save_start(config, std::move(start), inputs.settings);
    start = policy_start(config);
  }
  RlSummary summary;
  train::run_on_ranks(config,
                      std::move(start.params),
                      start.make_masters,
                      start.trainer,
                      config.threads,
                      [&](train::RunRank& rank) {
                        if (rank.is_first()) {
                          summary =
                              RunLoop(config, make_executor, events, inputs, rank, shared).run();
                        } else {
                          follow_first(config, inputs.settings, rank, shared);
                        }
                      });
  return summary;
}

}  // namespace

RlSummary run_rl(const RlConfig& config,
                 const ExecutorMaker& make_executor,
                 const RlEvents& events) {
  validate(config);
  train::check_export_folder(config.export_to);
  std::error_code error;
  std::filesystem::create_directories(config.out, error);
  if (error) {
    throw SystemError(fmt::format("out: {} cannot be made: {}", config.out, error.message()));
  }
  at::set_num_threads(static_cast<int>(config.threads));
  if (train::saved_step(checkpoint_root(config)) < 0) {
    try_verifiers(config);
    if (!run_warm_up(config, events)) {
      RlSummary summary;
      summary.stopped = true;
      return summary;
    }
  }
  return run_ranks(config, make_executor, events);
}

}  // namespace baleen::rl
