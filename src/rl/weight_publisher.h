#pragma once
// Brings the trainer's weights to the engine. Versions begin at 0 for the weights of the start and
// grow by one with every publish. Called by the loop while no request runs; nothing that was cached
// under older weights is found afterwards.
//
//   SharedPublisher publisher(masters, contract);   // checked_publishers.h
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

}  // namespace baleen::rl
