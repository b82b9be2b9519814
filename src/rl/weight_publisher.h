#pragma once
// Brings the trainer's weights to the engine. Versions begin at 0 for the weights of the start and
// grow by one with every publish. Called by the loop while no request runs; nothing that was cached
// under older weights is found afterwards.
//
//   AliasPublisher publisher;
//   publisher.publish(engine, version);

#include <cstdint>

namespace baleen::engine {
class Engine;
}  // namespace baleen::engine

namespace baleen::rl {

class WeightPublisher {
 public:
  virtual ~WeightPublisher() = default;
  /// Throws Error when the engine refuses.
  virtual void publish(engine::Engine& engine, int64_t version) = 0;
};

/// Engine and trainer share the storage: nothing is copied. Between rollouts the engine runs no
/// step, so that it never reads half-written weights.
class AliasPublisher final : public WeightPublisher {
 public:
  void publish(engine::Engine& engine, int64_t version) override;
};

}  // namespace baleen::rl
