#pragma once
// Publishers that prove what the engine got: by contract before, by digests behind. Masters rest
// while they are published. Called by the loop's thread.
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

/// The engine computes with a copy: rounded as numeric_side() says, for a run with drift, or put
/// together from the parts of several ranks. take() comes before the publishes of a version, while
/// the engines have nothing to do.
class CopyPublisher final : public WeightPublisher {
 public:
  /// `served`: the very tensors of the engines.
  CopyPublisher(std::string formats, model::ModelParameters served, std::string contract)
      : formats_(std::move(formats)), served_(std::move(served)), contract_(std::move(contract)) {}
  /// Throws Error naming tensor and index of a number that is not finite.
  void take(const model::ModelParameters& leaves);
  void publish(engine::Engine& engine, int64_t version) override;

 private:
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
