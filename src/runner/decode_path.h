#pragma once
// A second way to run the rows of a step, beside the model's body: tokens of some sequences whose
// rows lie in the pools of the shared cache, one or a few of each or, where the path runs prompts,
// any number. Both ways read and write the same bytes there, so a sequence may go from one to the
// other between any two tokens. Owned by the executor, used on its thread; the pools outlive it.
//
//   path->change_page(change);              // every change of the page tables, in order
//   path->run(rows);                        // rows of all layers are in the pools afterwards
//   std::span<const float> logits = path->logits(0, 0);   // behind a token, until the next run
//
// A path may also draw the tokens behind its rows, as kernels::sample_token would: logits then stay
// where they are.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/model_config.h"
#include "base/strong_id.h"
#include "cache/pool_memory.h"
#include "cache/sequence_cache.h"
#include "engine/batch_plan.h"
#include "kernels/sampling/sampling.h"
#include "model/forward.h"
#include "weights/checkpoint.h"

namespace baleen::runner {

/// Results that a run of one row alone may want; of several rows, each may want max_row_tokens().
inline constexpr int32_t kMostRowResults = 64;

/// Tokens of the slot's sequence at `position` and behind it; all rows before are in the pools.
struct DecodeRow {
  std::span<const int32_t> ids;
  RequestSlot slot;
  int32_t position = 0;
  int32_t first_result =
      0;  // logits or draws are wanted behind this token of `ids` and those after
  const engine::SamplingRow* draw = nullptr;    // the path draws by these; null: logits are wanted
  std::span<const uint32_t> allowed_bits = {};  // of the draw, 32 tokens per word; empty: all
};

/// What a path drew behind a token; `top` has the best tokens, where wanted.
struct DrawnToken {
  kernels::SampledToken token;
  std::span<const kernels::ScoredToken> top;
};

/// Next rows of the draft layer of one sequence: at `position` and behind it.
struct DraftRow {
  std::span<const int32_t> next_ids;  // the token after each row's position, at least one
  RequestSlot slot;
  int32_t position = 0;
  /// One row, from the streams that the slot's latest draft row left, instead of `streams`.
  bool chained = false;
  const uint8_t* streams = nullptr;  // bf16 [next_ids, n·H] in the device's memory
  // Rows that the sequence must not read: those before, and one (-1: none).
  int32_t hidden_before = 0;
  int32_t hidden_row = -1;
};

class DecodePath {
 public:
  virtual ~DecodePath() = default;

  virtual std::string name() const = 0;        // for the log and /v1/models
  virtual int64_t max_context() const = 0;     // positions that it runs
  virtual int32_t max_row_tokens() const = 0;  // ids of a row, unless the path runs prompts
  virtual bool runs_prompts() const = 0;       // rows of any length
  virtual int64_t device_bytes() const = 0;    // of its own, beside the pools
  virtual void change_page(const cache::PageChange& change) = 0;
  /// What the device has left, with all that the path will ever take taken; -1: the path does not
  /// know, and its pools stay what they are.
  virtual int64_t free_device_bytes() const { return -1; }
  /// From now on the path's rows lie in these pools, whose pages no sequence has yet.
  virtual void use_pools(cache::PoolMemory& /*pools*/) {
    BALEEN_CHECK(false, "{} keeps its pools", name());
  }
  /// Whether the path draws by these parameters, for a sequence without counts for penalties.
  virtual bool draws(const engine::SamplingRow& sampling) const = 0;
  /// Returns when the results are there. Throws Error when the device fails or refuses a row.
  virtual void run(std::span<const DecodeRow> rows) = 0;
  /// Of the latest run, a row without `draw`: float32 [vocabulary], the row's result `index`.
  virtual std::span<const float> logits(std::size_t row, std::size_t index) const = 0;
  /// Of the latest run, a row with `draw`: its result `index`, drawn as if all tokens before stood.
  virtual DrawnToken drawn(std::size_t row, std::size_t index) const = 0;
  /// Streams after the last block, bf16 [ids of the row, n·H], in the device's memory.
  virtual const uint8_t* streams(std::size_t row) const = 0;

  /// Choices of all tokens of the latest run, row after row; null where none are recorded.
  virtual const model::ForwardChoices* choices() const { return nullptr; }

  /// Whether the draft layer runs here too, over window rows in the same pools.
  virtual bool runs_drafts() const { return false; }
  /// At most one row per slot. Returns when the logits are there; throws as run().
  virtual void draft(std::span<const DraftRow> /*rows*/) {
    BALEEN_CHECK(false, "{} has no draft layer", name());
  }
  /// Of the latest draft: float32 [vocabulary] behind the row's last token.
  virtual std::span<const float> draft_logits(std::size_t /*row*/) const { return {}; }
};

/// What a path is made from, once the pools exist.
struct DecodePathContext {
  const ModelConfig& config;
  cache::PoolMemory& pools;
  std::string folder;                                     // of the weights
  std::shared_ptr<const weights::Checkpoint> checkpoint;  // its files; null: not open yet
  int32_t num_slots = 0;
  int64_t max_context = 0;
  int32_t max_row_tokens = 1;  // that will be asked for, beside prompts
  int32_t max_step_tokens = 1;
  int32_t device_index = 0;
  bool invariant = false;  // a token's bits must not depend on what runs with it
  bool record_choices = false;
  // Radians per position of the rotated pairs: of window layers, and of the others.
  std::vector<double> plain_frequencies;
  std::vector<double> compressed_frequencies;
};
using DecodePathMaker = std::function<std::unique_ptr<DecodePath>(const DecodePathContext&)>;

}  // namespace baleen::runner
