#pragma once
// Everything a sequence carries from one forward step to the next: per layer the raw window rows,
// and where the layer compresses, the rows of the open group, its carry, and the closed entries.
// Owned by the caller of the forward (one request, one owner); one thread at a time.
//
// Rollback: the last `max_rollback` tokens can be taken back at any time without a copy, because
// rows are addressed by position and enough older ones stay readable. Going further back needs a
// copy made before (clone).
//
//   SequenceState state(config, {.max_rollback = 4}, options);
//   SequenceState saved = state.clone();
//   state.rollback(state.num_tokens() - 2);

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/model_config.h"
#include "model/row_store.h"

namespace baleen::cache {
class PoolMemory;
struct SequencePages;
}  // namespace baleen::cache

namespace baleen::model {

struct SequenceStateOptions {
  int64_t max_rollback = 0;  // tokens that rollback() may take back
  bool with_mtp = false;     // keep what the MTP blocks need
  /// Pages on the host are read and written as a device's must be, see PagedRowsLayout; for tests.
  bool rows_by_tensors = false;
#ifdef NDEBUG
  bool paint_unused = false;  // NaN in memory that holds no row
#else
  bool paint_unused = true;
#endif
};

/// State of one compressor. A group without a predecessor has no carry rows at all, which is the
/// "value 0, score -inf" of an untouched reference state.
struct CompressorState {
  int64_t ratio = 0;
  std::unique_ptr<RowStore> rows;     // per token [value | score with ape], 2·c·d numbers
  std::unique_ptr<RowStore> entries;  // closed entries, one per `ratio` tokens
};

struct LayerState {
  std::unique_ptr<RowStore> raw;         // [D] per token
  std::optional<CompressorState> main;   // kC4 and kC128
  std::optional<CompressorState> index;  // kC4
};

/// Rows of the draft layer that the sequence must not read: another sequence made them for another
/// next token, or nobody made them.
struct HiddenDraftRows {
  int64_t before = 0;  // all rows before this position
  int64_t hole = -1;   // and this one; -1: none
};

class SequenceState {
 public:
  SequenceState(const ModelConfig& config,
                const SequenceStateOptions& state_options,
                const at::TensorOptions& tensor_options);

  /// Rows in `pools`, at the pages that `pages` names; both outlive the state. The pools' formats
  /// must hold what `numerics` of the forward rounds rows to.
  SequenceState(const ModelConfig& config,
                const SequenceStateOptions& state_options,
                const at::TensorOptions& tensor_options,
                cache::PoolMemory& pools,
                const cache::SequencePages& pages);

  SequenceState(SequenceState&&) = default;
  SequenceState& operator=(SequenceState&&) = default;
  SequenceState(const SequenceState&) = delete;  // say clone()
  SequenceState& operator=(const SequenceState&) = delete;

  /// Deep copy. Restoring is `state = saved.clone()`.
  SequenceState clone() const;

  /// Tokens processed so far; the position of the next one.
  int64_t num_tokens() const { return num_tokens_; }
  /// Earliest length that rollback() can reach now.
  int64_t rollback_limit() const;
  /// Makes the state that of the first `num_tokens` tokens. Not below rollback_limit().
  void rollback(int64_t num_tokens);
  /// Back to an empty sequence; memory is kept.
  void reset() { begin_at(0); }
  /// The next token is that of `position`. Rows before it must be in the pages (or position be 0).
  void begin_at(int64_t position);
  /// The same, and the draft layer begins one row earlier, with these streams [n, H] of the last
  /// position before.
  void begin_at(int64_t position, const at::Tensor& last_streams);
  void hide_draft_rows(const HiddenDraftRows& hidden) { hidden_draft_rows_ = hidden; }
  const HiddenDraftRows& hidden_draft_rows() const { return hidden_draft_rows_; }

  int64_t bytes() const;
  const SequenceStateOptions& options() const { return options_; }

  // For the forward only.
  LayerState& layer(std::size_t index) { return layers_[index]; }
  LayerState& mtp_layer(std::size_t block) { return mtp_layers_[block]; }
  /// The main or index compressor of the `c4_layer`-th kC4 layer.
  const CompressorState& c4_compressor(bool index, int64_t c4_layer) const;
  /// Streams after the last block, which an MTP block pairs with the next token: [n·H] per token.
  RowStore& streams() { return *streams_; }
  const RowStore& streams() const { return *streams_; }
  /// Streams [1, n, H] after the latest row of a draft chain, which its next row continues from.
  at::Tensor& chain_streams() { return chain_streams_; }
  void advance(int64_t new_tokens);
  /// Somebody else has run the next tokens and left their rows in the pages. `streams` [count,
  /// n·H]: theirs after the last block; undefined where no draft layer will ask.
  void advance_in_pages(int64_t count, const at::Tensor& streams);

 private:
  explicit SequenceState(const SequenceStateOptions& options) : options_(options) {}

  SequenceStateOptions options_;
  int64_t num_tokens_ = 0;
  int64_t high_water_ = 0;   // longest length since the last reset
  int64_t first_token_ = 0;  // where the sequence began; the prefix before it came with the pages
  std::vector<LayerState> layers_;
  std::vector<LayerState> mtp_layers_;
  std::unique_ptr<RowStore> streams_;
  at::Tensor chain_streams_;
  HiddenDraftRows hidden_draft_rows_;
};

/// Bytes that one more token adds to a state in the long run (compressed entries and index keys).
double state_bytes_per_token(const ModelConfig& config, int64_t element_bytes);

}  // namespace baleen::model
