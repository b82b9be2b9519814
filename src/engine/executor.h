#pragma once
// What carries a BatchPlan out. The engine owns exactly one executor and calls submit and wait from
// one thread of its own, the step worker's; capacity and info before that, page_observer's calls
// come from the engine's thread while a step runs, for pages that no step uses. Weights and memory
// change on the engine's thread while no step is unfinished. The model runner,
// the scripted executor of the API tests and the fake one of the scheduler tests implement it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "base/strong_id.h"
#include "cache/choice_arrays.h"
#include "cache/sequence_cache.h"
#include "engine/batch_plan.h"
#include "engine/weight_update.h"

namespace baleen::engine {

struct ExecutorCapacity {
  int32_t num_slots = 0;        // request slots, numbered from 0
  int64_t max_context = 0;      // tokens of one sequence
  int32_t max_step_tokens = 0;  // tokens of one step
  int64_t vocab_size = 0;
  int32_t max_accepted = 1;  // most tokens that a row may give
  int32_t max_drafts = 0;    // of one verify row; 0: no draft layer, no verify rows
  /// Pages of a shared cache: the engine decides what they hold. None: the executor keeps the state
  /// of each request slot itself, and nothing is ever reused.
  std::optional<cache::SequenceCacheOptions> cache = std::nullopt;
  /// What is recorded of every token's choices; none: nothing is.
  std::optional<cache::ChoiceLayout> choices = std::nullopt;
};

struct ExecutorInfo {
  std::string model_name;
  std::string numerics;  // chosen numeric mode and kernels, for the log and /v1/models
  int64_t weight_bytes = 0;
  int64_t state_bytes_per_token = 0;
  std::string contract = {};  // digest of how tokens are computed (model/contract.h); empty: none
};

using Ticket = StrongId<struct TicketTag, int64_t>;

/// Fills the allowed-token bits of the plan's mask rows: 32 tokens per word, bit set = allowed.
/// Called before the step samples. Rows with a mask are planned when all tokens before theirs are
/// known.
using MaskProvider = std::function<void(int32_t bitmask_row, std::span<uint32_t> bits)>;

class Executor {
 public:
  virtual ~Executor() = default;
  virtual ExecutorCapacity capacity() const = 0;
  virtual ExecutorInfo info() const = 0;
  /// Told when a page of the cache is free, to paint it; null: not interested.
  virtual cache::PageObserver* page_observer() { return nullptr; }
  /// Starts a step; the one before has been waited for. Throws Error when the device fails; the
  /// executor's state is then not used again.
  virtual Ticket submit(const BatchPlan& plan, const MaskProvider& masks) = 0;
  /// Blocks until the step is done.
  virtual StepResult wait(Ticket ticket) = 0;

  /// Experts of layers that choose them by token id; null: there is no such layer, or nothing is
  /// recorded. Of the weights that are there now.
  virtual std::shared_ptr<const cache::TokenRoutes> token_routes() const { return nullptr; }
  /// Takes the weights of a checkpoint folder; brings released ones back. Sequences that go on keep
  /// the state they have. On failure nothing has changed; throws only when the state is lost.
  virtual Status update_weights(const std::string& folder);
  /// Writes the source's weights over the old ones. On failure weights_lost() says whether they are
  /// still whole.
  virtual Status update_weights(weights::WeightSource& source);
  virtual bool weights_lost() const { return false; }
  /// Gives memory back; no step comes until it is resumed. What sequences stored is lost with
  /// `cache`. Parts that are there.
  virtual Status release_memory(MemoryParts parts);
  /// Has it again; weights are those that were there last. On failure nothing has changed.
  virtual Status resume_memory(MemoryParts parts);
};

}  // namespace baleen::engine
