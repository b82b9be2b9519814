#pragma once
// Orders about an engine's weights and memory. Plain data; Engine::update_weights, release_memory.

#include <memory>
#include <optional>
#include <string>

namespace baleen::weights {
class WeightSource;  // known to who sends and to the executor; the engine passes it on
}  // namespace baleen::weights

namespace baleen::engine {

struct WeightUpdate {
  std::string folder = {};  // a checkpoint of the configuration that is served
  // Instead of a folder: weights from memory, written over the old ones. When that fails half-way
  // the engine has no weights, is not healthy and takes no request until an update succeeds.
  std::shared_ptr<weights::WeightSource> source = nullptr;
  std::optional<std::string> version = {};  // their name; none: it stays
  bool abort_requests = false;              // ends all requests first, with kAbort
  // Running requests give up what they computed and go on with the new weights; the cache is
  // emptied. False: they keep it, and mix the two; no later request sees any of it.
  bool flush_cache = true;
  bool keep_paused = false;  // no step afterwards until resume()
};

/// Memory that an engine can do without for a while.
struct MemoryParts {
  bool cache = false;
  bool weights = false;

  bool any() const { return cache || weights; }
  MemoryParts without(MemoryParts other) const {
    return {cache && !other.cache, weights && !other.weights};
  }
  MemoryParts with(MemoryParts other) const {
    return {cache || other.cache, weights || other.weights};
  }
};

}  // namespace baleen::engine
