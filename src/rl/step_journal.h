#pragma once
// Keeps the finished batch of every rollout since the last checkpoint, so that a run that was ended
// trains on it again without generating it. One file per rollout, written beside its place and
// renamed. One thread.
//
//   StepJournal journal(out / "wal");
//   if (auto known = journal.load(rollout)) { ... } else { ...; journal.store(batch, data); }
//   journal.forget_before(next_rollout);     // behind a checkpoint

#include <cstdint>
#include <filesystem>
#include <optional>

#include "rl/batch_codec.h"

namespace baleen::rl {

class StepJournal {
 public:
  /// Makes the folder. Throws SystemError.
  explicit StepJournal(std::filesystem::path folder);

  /// None when the rollout was not finished. A file that is damaged is named in an error: it was
  /// renamed into place whole.
  std::optional<DecodedBatch> load(int64_t rollout) const;
  void store(const RolloutBatch& batch, const DataState& data) const;
  std::filesystem::path token_log(int64_t rollout) const;
  /// Removes the tokens of a rollout that is stored.
  void drop_token_log(int64_t rollout) const;
  /// Removes what a checkpoint has made useless.
  void forget_before(int64_t rollout) const;

 private:
  std::filesystem::path batch_file(int64_t rollout) const;
  std::filesystem::path folder_;
};

}  // namespace baleen::rl
