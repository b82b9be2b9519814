#pragma once
// Publishers that prove what the engine got: by contract before, by digests behind. Each keeps a
// reference to the masters, which rest while it publishes. Called by the loop's thread.
//
//   SharedPublisher publisher(trainer.masters(), contract);
//   publisher.publish(engine, version);

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "rl/weight_publisher.h"
#include "train/weight_sender.h"

namespace baleen::rl {

/// What of the values is compared at the `number`-th version that is published: everything of the
/// first two, where stale pointers and skipped tensors show, then a sample.
train::WeightVerify verify_of_publish(int64_t number);

/// The engine computes with the trainer's own tensors.
class SharedPublisher final : public WeightPublisher {
 public:
  SharedPublisher(const train::Masters& masters, std::string contract)
      : masters_(masters), contract_(std::move(contract)) {}
  void publish(engine::Engine& engine, int64_t version) override;

 private:
  const train::Masters& masters_;
  std::string contract_;
  int64_t first_version_ = -1;  // published; -1: none yet
};

/// The engine computes with a copy that is rounded as numeric_side() says: a run with drift, to see
/// what it does. The copy is written here, while the engine rests.
class RoundedPublisher final : public WeightPublisher {
 public:
  /// `served`: the very tensors of the engine.
  RoundedPublisher(const train::Masters& masters,
                   std::string formats,
                   model::ModelParameters served,
                   std::string contract)
      : masters_(masters),
        formats_(std::move(formats)),
        served_(std::move(served)),
        contract_(std::move(contract)) {}
  void publish(engine::Engine& engine, int64_t version) override;

 private:
  const train::Masters& masters_;
  std::string formats_;
  model::ModelParameters served_;
  std::string contract_;
  int64_t first_version_ = -1;  // published; -1: none yet
};

/// The engine has storage of its own, in the formats that the masters are served in.
class StreamPublisher final : public WeightPublisher {
 public:
  StreamPublisher(const train::Masters& masters, std::string contract, int64_t bucket_bytes)
      : masters_(masters), contract_(std::move(contract)), bucket_bytes_(bucket_bytes) {}
  void publish(engine::Engine& engine, int64_t version) override;

 private:
  const train::Masters& masters_;
  std::string contract_;
  int64_t bucket_bytes_;
  int64_t first_version_ = -1;  // published; -1: none yet
};

/// Through a folder per version below `parent`; the one before the last is removed.
class FolderPublisher final : public WeightPublisher {
 public:
  FolderPublisher(const train::Masters& masters, std::string contract, std::filesystem::path parent)
      : masters_(masters), contract_(std::move(contract)), parent_(std::move(parent)) {}
  void publish(engine::Engine& engine, int64_t version) override;

  /// Writes the folder and gives its path: for engines of other processes, which are told by POST
  /// /update_weights_from_disk.
  std::filesystem::path write(int64_t version);

 private:
  const train::Masters& masters_;
  std::string contract_;
  std::filesystem::path parent_;
};

}  // namespace baleen::rl
