#pragma once
// Discrete choices of rollouts taken again in the trainer's forward: experts and picked entries are
// those that the engine recorded, everything continuous is computed. Records are found by sample
// number and position, never by the order of calls, so they fit any packing, padding, micro-batch
// and a second run of a block. One owner; one thread.
//
//   ChoiceReplay replay(config, {.routes = true, .picks = true});
//   replay.add(sample, *finish.choices);                     // as the engine gave them
//   PackedForward out = replayed_forward(params, batch, options, replay, ReplayMode::kPlay);
//   replay.clear();                                          // behind the update
//
// Docs: docs/training/replay.md.

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "cache/choice_records.h"
#include "model/choices.h"
#include "train/packed_batch.h"
#include "train/packed_forward.h"
#include "train/replay_agreement.h"

namespace baleen::train {

/// Which choices a forward takes from the records.
struct ReplayParts {
  bool routes = true;
  bool picks = true;

  bool any() const { return routes || picks; }
  friend bool operator==(const ReplayParts&, const ReplayParts&) = default;
};

/// none, routes, picks or both. Throws ConfigError naming any other name.
ReplayParts replay_parts_by_name(std::string_view name);

enum class ReplayMode : uint8_t {
  kOff,          // the forward chooses; records are neither read nor written
  kRecord,       // the forward chooses, and its choices become the records
  kPlay,         // the forward takes the records
  kFallThrough,  // the forward chooses for itself; the records stay for others (a reference model)
};

class ChoiceReplay {
 public:
  /// Records of main layers; MTP blocks choose for themselves.
  ChoiceReplay(const ModelConfig& config, ReplayParts parts);

  ReplayParts parts() const { return parts_; }
  const cache::ChoiceLayout& layout() const { return layout_; }

  /// Takes the records of a sample: one of each fed token, from position 0 on; what `parts` leaves
  /// out may be empty. Throws Error naming the sample, and both shapes or layer and position, when
  /// they are missing, short, long, out of range or repeat an expert. A sample may be added again.
  void add(const Sample& sample, const cache::ChoiceRecords& records);
  /// Throws Error naming the first of `samples` that has no record; to be called before an update.
  void require(std::span<const Sample> samples) const;
  void clear() { records_.clear(); }

  bool contains(int64_t number) const { return records_.contains(number); }
  /// The sample must be there (checked).
  const cache::ChoiceRecords& records_of(int64_t number) const;

  /// Choices in the rows and groups of `batch`, on its device. Rows of padding get experts spread
  /// evenly and the first entries. Throws Error naming a sample that has no, or another, record.
  model::ChoicesByLayer given(const PackedBatch& batch) const;
  /// Makes the choices of a forward the records of the batch's samples.
  void record(const PackedBatch& batch, const model::ChoicesByLayer& made);

  int64_t num_samples() const { return static_cast<int64_t>(records_.size()); }
  /// Of all records.
  int64_t num_tokens() const;
  int64_t num_bytes() const;

 private:
  const cache::ChoiceRecords& of_sample(const PackedSample& sample) const;

  ModelConfig config_;
  cache::ChoiceLayout layout_;
  ReplayParts parts_;
  std::map<int64_t, cache::ChoiceRecords> records_;  // by sample number
};

/// packed_forward in one of the modes. `agreement`, in kPlay: fed tokens of the batch are compared
/// with what the taps say that the trainer would have chosen; routes where options.routing is set,
/// picks where options.index_scores is. Overwrites options.given and keep_choices.
PackedForward replayed_forward(const model::ModelParameters& params,
                               const PackedBatch& batch,
                               PackedForwardOptions options,
                               ChoiceReplay& replay,
                               ReplayMode mode,
                               ReplayAgreement* agreement = nullptr);

}  // namespace baleen::train
