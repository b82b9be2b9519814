#pragma once
// The model as the runner sees it, without Torch in the interface: load a checkpoint, make
// sequences, run new tokens of several sequences at once, get logits as numbers. A Model may be
// shared by its sequences only from one thread at a time; it must outlive nothing (sequences keep
// no reference).
//
//   Model model = Model::load("models/abacus", {.numerics = "checkpoint"});
//   Sequence sequence = model.new_sequence();
//   ForwardOutput output;                               // reused from step to step
//   model.forward({{.sequence = &sequence, .first_position = 0, .ids = prompt}}, output);
//   std::span<const float> logits = output.row(0);      // of the last prompt token

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/model_config.h"
#include "cache/choice_arrays.h"
#include "cache/choice_layout.h"
#include "cache/pool_memory.h"
#include "cache/sequence_pages.h"

namespace baleen::weights {
class Checkpoint;
}  // namespace baleen::weights

namespace baleen::model {

enum class ComputeType : uint8_t { kFloat32, kFloat64 };

struct ForwardConfig {
  ComputeType compute = ComputeType::kFloat32;
  /// "reference", "plain", or "checkpoint": reference where config.json has quantization_config.
  /// With "+invariant" behind it every sum has one order per row: the logits of a token depend on
  /// its sequence alone, bit for bit, not on batch, chunks, cache hits or threads. On a GPU that
  /// holds for what runs there elsewhere: the model itself must not keep its layers then.
  std::string numerics = "checkpoint";
  int64_t max_context = 0;      // tokens of one sequence; 0: what config.json allows
  int64_t max_rollback = 0;     // tokens that a sequence can take back without a copy
  bool with_mtp = false;        // run the MTP block on every sequence
  bool record_choices = false;  // expert routes and index picks of every token
  std::string device = "cpu";   // where weights, sequences and shared pages live; "cuda", "cuda:N"
  int32_t num_threads = 1;      // of one operator; more than 1 slows small models down
  /// False: layers, main and draft, are read from the folder, one at a time, whenever rows run. For
  /// a model whose rows run elsewhere and which only has to say whether they do so rightly.
  bool keep_layers = true;
  /// Bytes read so far and in all, from load(); may be empty, may be called by several threads.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> load_progress = {};
};

/// What one sequence remembers; made by Model::new_sequence.
class Sequence {
 public:
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();

  /// Tokens processed so far; the position of the next one.
  int64_t num_tokens() const;
  /// Back to the first `num_tokens` tokens; not below rollback_limit().
  void rollback(int64_t num_tokens);
  int64_t rollback_limit() const;
  /// Empty again, memory kept.
  void reset();
  /// The next token is that of `position`; the rows before it must be in the pages.
  void begin_at(int64_t position);
  /// The same, and the draft layer begins one row earlier, with the streams that copy_streams()
  /// gave for position - 1: bytes in the memory of the device, as there.
  void begin_at(int64_t position, std::span<const uint8_t> last_streams);
  /// The rows of the next `count` tokens are in the pages: somebody else has run them. `streams`:
  /// theirs after the last block for the draft layer, bf16 [count, n·H] in the memory of the
  /// device; null where no draft layer runs.
  void advance_in_pages(int64_t count, const uint8_t* streams);
  /// Position of the draft layer's next row.
  int64_t draft_rows_end() const;
  /// Streams that its next `count` rows begin from: bf16 [count, n·H] in the memory of the device,
  /// valid until the next call.
  const uint8_t* draft_streams(int64_t count);
  /// The next `count` rows of the draft layer are in the pages: somebody else has run them.
  void advance_draft_rows(int64_t count);
  /// What hide_draft_rows() said.
  int64_t hidden_draft_rows_before() const;
  int64_t hidden_draft_row() const;
  /// Rows of the draft layer that must not be read: those before `before`, and `hole` (-1: none).
  void hide_draft_rows(int64_t before, int64_t hole);
  /// Forgets the chain of guesses behind the tokens processed so far.
  void drop_draft_chain();
  /// Streams behind the latest draft row, which a chain goes on from; sizes as below.
  void copy_chain_streams(std::span<uint8_t> streams) const;
  /// Streams of one of the latest positions, in bf16 or as computed, by the size of `streams`,
  /// which is memory of the device.
  void copy_streams(int64_t position, std::span<uint8_t> streams) const;
  /// Row of a kC4 layer's compressor ring at one of the last positions of the latest step, as the
  /// ring's bytes in the device's memory; `index`: of its index compressor. Valid until the next
  /// step.
  const uint8_t* ring_row(bool index, int64_t c4_layer, int64_t position) const;
  /// Deep copy; putting a copy back restores the sequence. Not for rows in shared pages.
  Sequence clone() const;
  int64_t bytes() const;

 private:
  friend class Model;
  struct State;
  explicit Sequence(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

enum class LogitsWanted : uint8_t { kNone, kLast, kAll };

/// What a step does for the MTP block of a sequence that keeps its state.
enum class MtpRows : uint8_t {
  kNone,         // nothing: no drafts are wanted for the sequence
  kKeepStreams,  // Model::draft() runs the rows, when it is known which tokens stand
  kComplete,     // runs all rows whose next token is known
};

/// New tokens of one sequence.
struct RowInput {
  Sequence* sequence = nullptr;
  int64_t first_position = 0;    // must be sequence->num_tokens()
  std::span<const int32_t> ids;  // at least one, each in [0, vocab_size)
  LogitsWanted logits = LogitsWanted::kLast;
  bool mtp_logits = false;  // of the MTP rows that this step completes
  MtpRows mtp = MtpRows::kComplete;
  int32_t next_id = -1;  // the token after `ids`, if it is known: the last MTP row is complete too
};

/// Next rows of the draft layer of one sequence.
struct DraftInput {
  Sequence* sequence = nullptr;
  std::span<const int32_t> next_ids;  // the token after each row's position, at least one
  bool chained = false;  // one row, from the draft layer's own streams instead of the model's
};

/// Rows of the result that belong to one RowInput.
struct LogitsSpan {
  int64_t begin = 0;
  int64_t count = 0;
};

/// Of every token of a step, in order: its choices as cache/choice_layout.h lays them out.
struct ForwardChoices {
  int64_t route_bytes = 0;  // of one token
  std::vector<uint8_t> routes;
  std::vector<uint8_t> picks;
  std::vector<int64_t> pick_begin;  // per token, and the end

  std::span<const uint8_t> routes_of(std::size_t token) const {
    const auto bytes = static_cast<std::size_t>(route_bytes);
    return std::span(routes).subspan(token * bytes, bytes);
  }
  std::span<const uint8_t> picks_of(std::size_t token) const {
    const auto begin = static_cast<std::size_t>(pick_begin[token]);
    return std::span(picks).subspan(begin, static_cast<std::size_t>(pick_begin[token + 1]) - begin);
  }
};

struct ForwardOutput {
  int64_t vocab_size = 0;
  std::vector<LogitsSpan> spans;      // per RowInput, rows of `logits`
  std::vector<LogitsSpan> mtp_spans;  // per RowInput, rows of the MTP logits
  // One of each pair is filled, by ForwardConfig::compute. Row-major [rows, vocab_size].
  std::vector<float> logits;
  std::vector<float> mtp_logits;
  std::vector<double> logits_f64;
  std::vector<double> mtp_logits_f64;
  ForwardChoices choices;  // of all tokens, with ForwardConfig::record_choices

  std::span<const float> row(int64_t index) const {
    return std::span<const float>(logits).subspan(static_cast<std::size_t>(index * vocab_size),
                                                  static_cast<std::size_t>(vocab_size));
  }
};

struct ModelParameters;

/// How a model's numbers are kept, before it is loaded.
struct ModelForm {
  std::string numerics;  // as Model::numerics_name()
  cache::CacheFormats formats;
};
/// Throws ConfigError naming numerics that there are none of.
ModelForm model_form(const ModelConfig& config, const ForwardConfig& forward_config);

class Model {
 public:
  /// Throws Error naming file, tensor or key when the checkpoint cannot be used.
  static Model load(const std::filesystem::path& folder, const ForwardConfig& forward_config);
  /// From parameters that are already in memory (their dtype is the compute type); they are moved
  /// to the device.
  Model(ModelParameters params, const ForwardConfig& forward_config);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  /// Gives the weights' memory back. From then on the model knows its configuration and can make
  /// pools and sequences, but runs nothing; another one is assigned to it to go on.
  void release_weights();
  bool has_weights() const;

  /// The files that the model was loaded from; null: it was not.
  std::shared_ptr<const weights::Checkpoint> checkpoint() const;

  /// Experts of the main layers that choose them by token id.
  cache::TokenRoutes token_routes() const;

  /// A sequence with memory of its own.
  Sequence new_sequence() const;

  /// How this model's rows are stored in a shared cache: packed where its numerics round rows to
  /// those formats, else in the compute type.
  cache::CacheFormats cache_formats() const;
  /// Pools of those formats for this model, in the memory of its device. `paint`: see PoolMemory.
  cache::PoolMemory make_pools(const cache::CacheSizes& sizes, bool paint) const;
  /// A sequence whose rows lie in `pools` at the pages that `pages` names. Both outlive it; `pages`
  /// may change between steps. It cannot be cloned.
  Sequence new_sequence(cache::PoolMemory& pools, const cache::SequencePages& pages) const;
  /// Runs the rows as one step and advances their sequences. `output` is overwritten; its memory is
  /// reused. A sequence may occur once per step.
  void forward(std::span<const RowInput> rows, ForwardOutput& output);
  /// Runs rows of the draft layer; `mtp_logits` of `output` gets one row per input, that of its
  /// last. A row of the draft layer at position i predicts the token at i + 2.
  void draft(std::span<const DraftInput> rows, ForwardOutput& output);

  /// The weights as they lie in memory; who writes them knows that no step runs.
  const ModelParameters& parameters() const;
  ModelParameters& parameters();
  /// contract_digest() of these weights' formats and the numerics.
  std::string contract() const;

  const ModelConfig& config() const;
  /// Of the records in ForwardOutput::choices.
  const cache::ChoiceLayout& choice_layout() const;
  const ForwardConfig& forward_config() const;
  const std::string& numerics_name() const;  // "reference" or "plain", and "+invariant" if so
  int64_t max_context() const;
  int64_t weight_bytes() const;
  double state_bytes_per_token() const;  // in the long run, per sequence
  int64_t fixed_state_bytes() const;     // of a fresh sequence

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baleen::model
