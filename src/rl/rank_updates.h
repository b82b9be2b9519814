#pragma once
// The updates and checkpoints of one rank of a run. Ranks make the same calls in the same order.
// One thread per rank.
//
//   RankUpdates updates(config, rank, settings);
//   updates.restore();
//   UpdateReport report = updates.run(batch, version);
//   updates.save();

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "rl/policy_passes.h"
#include "rl/policy_update.h"
#include "train/run_rank.h"

namespace baleen::rl {

/// A checkpoint's file beside the trainer's: where the run stands in its data (batch_codec.h).
inline constexpr const char* kDataFile = "data.bin";

std::filesystem::path checkpoint_root(const RlConfig& config);
/// How many are kept, and the settings of the run.
train::SaveOptions save_options(const RlConfig& config, const train::RunSettings& settings);

class RankUpdates {
 public:
  /// Keeps a copy of the weights of the start where a KL term asks for one.
  RankUpdates(const RlConfig& config, train::RunRank& rank, const train::RunSettings& settings);

  /// False without a checkpoint.
  bool restore();
  /// `extra_files` by name, of the first rank.
  void save(std::map<std::string, std::string> extra_files = {}) const;
  UpdateReport run(const RolloutBatch& batch, int64_t version) {
    return update_.run(batch, version);
  }

 private:
  const RlConfig& config_;
  train::RunRank& rank_;
  train::RunSettings settings_;
  std::unique_ptr<PolicyPasses> passes_;
  PolicyUpdate update_;
};

}  // namespace baleen::rl
