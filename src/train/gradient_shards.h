#pragma once
// Forward and backward of a step's parts on several threads. Each thread has leaves of its own over
// the same values, and a gradient buffer of its own; the buffers are added in order. Which part
// runs on which thread follows from the count alone, so one count gives one sum, bit for bit. Owned
// by a trainer; one caller at a time.
//
//   GradientShards shards(masters, 2);
//   shards.run(masters, num_parts, [&](const model::ModelParameters& leaves, std::size_t part) {
//     loss(leaves, part).backward();
//   });                                   // the masters' gradients hold the sum

#include <cstddef>
#include <functional>
#include <vector>

#include "train/masters.h"

namespace baleen::train {

class GradientShards {
 public:
  /// One shard: everything runs on the calling thread.
  GradientShards(const Masters& masters, std::size_t count);

  std::size_t count() const { return more_.size() + 1; }
  /// Runs `work` for every part, part p on thread p mod count, the parts of a thread in order;
  /// waits for all, then rethrows the first fault. `work` is called on several threads at once.
  /// `masters`: those that the shards were made of.
  using Work = std::function<void(const model::ModelParameters& leaves, std::size_t part)>;
  void run(Masters& masters, std::size_t num_parts, const Work& work);

 private:
  std::vector<Masters::Shard> more_;  // beside the masters' own leaves
};

}  // namespace baleen::train
