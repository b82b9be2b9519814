#pragma once
// Publishers that prove what the engine got: by contract before, by digests behind. Masters rest
// while they are published. Called by the loop's thread.
//
//   SharedPublisher publisher(trainer.masters(), contract);
//   publisher.publish(engine, version);

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "rl/weight_publisher.h"
#include "train/weight_sender.h"

namespace baleen::rl {

/// What of the values is compared at the `number`-th version that is published: everything of the
/// first two, where stale pointers and skipped tensors show, then a sample.
train::WeightVerify verify_of_publish(int64_t number);

/// Hands the engine a source of weights. Made by the publishers below.
class SourcePublisher : public WeightPublisher {
 public:
  void publish(engine::Engine& engine, int64_t version) final;

 protected:
  explicit SourcePublisher(std::string contract) : contract_(std::move(contract)) {}
  /// Of the present weights. Throws Error naming tensor and index of a number that is not finite.
  virtual std::shared_ptr<weights::WeightSource> source(const train::SendOptions& options) = 0;

 private:
  std::string contract_;
  int64_t first_version_ = -1;  // published; -1: none yet
};

/// The engine computes with the trainer's own tensors.
class SharedPublisher final : public SourcePublisher {
 public:
  SharedPublisher(const train::Masters& masters, std::string contract)
      : SourcePublisher(std::move(contract)), masters_(masters) {}

 private:
  std::shared_ptr<weights::WeightSource> source(const train::SendOptions& options) override;

  const train::Masters& masters_;
};

/// The engine computes with a copy: rounded as numeric_side() says, for a run with drift, or put
/// together from the parts of several ranks. take() comes before the publishes of a version, while
/// the engines have nothing to do.
class CopyPublisher final : public SourcePublisher {
 public:
  /// `served`: the very tensors of the engines.
  CopyPublisher(std::string formats, model::ModelParameters served, std::string contract)
      : SourcePublisher(std::move(contract)),
        formats_(std::move(formats)),
        served_(std::move(served)) {}
  /// Throws Error naming tensor and index of a number that is not finite.
  void take(const model::ModelParameters& leaves);

 private:
  std::shared_ptr<weights::WeightSource> source(const train::SendOptions& options) override;

  std::string formats_;
  model::ModelParameters served_;
};

}  // namespace baleen::rl
