#pragma once
// Versions of a run's weights as folders, for engines of other processes that see the disk:
// PARENT/v3 in the published format, and PARENT/v3.delta with what changed since v2. Each appears
// whole. The last two of both stay. Owned by the run's loop; one thread.
//
//   VersionFolders folders(config.publish_to, config.model);
//   folders.write(weights, 3);      // then POST /update_weights_from_disk {"model_path": "…/v3"}

#include <cstdint>
#include <filesystem>
#include <string>

#include "train/weight_sender.h"

namespace baleen::rl {

class VersionFolders {
 public:
  /// `source`: the model's folder, whose tokenizer goes with every version; empty: it has none.
  /// Makes `parent`. Throws SystemError.
  VersionFolders(std::filesystem::path parent, std::filesystem::path source);

  /// Of a run that goes on, again with the same bytes. The delta where the version before is there.
  /// Throws Error when a number is not finite or the disk refuses.
  void write(const train::PublishedWeights& whole, int64_t version) const;

 private:
  std::filesystem::path folder(int64_t version) const;
  std::filesystem::path delta(int64_t version) const;

  std::filesystem::path parent_;
  std::filesystem::path source_;
};

}  // namespace baleen::rl
