#pragma once
// The samples of a step cut over data ranks and micro-batches, and what one rank needs of its own
// ones. Every data rank has as many micro-batches; one without samples gets a sample that counts
// nowhere, because its experts still work for others. The cut follows from lengths and order alone.
//
//   StepCut cut(samples, denominators, model_config, mesh, {.max_tokens = 4096});
//   for (const MeshPart& part : cut.parts()) ...

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/mesh.h"
#include "mesh/mesh_model.h"
#include "mesh/step_plans.h"
#include "train/packed_batch.h"

namespace baleen::train {

struct CutOptions {
  PackOptions pack;
  int64_t max_tokens = 0;     // fed tokens of a micro-batch; 0: all of a data rank's
  int64_t least_batches = 1;  // micro-batches of a data rank, where there are as many samples
  int64_t multiple = 1;       // their number is a multiple of this
  bool zig_zag = false;
};

/// One micro-batch of this rank's data rank. Tensors are by token of the batch, [N].
struct MeshPart {
  PackedBatch batch;
  bool counts = true;  // false: made up, because the data rank has no sample for it
  std::unique_ptr<mesh::StepPlans> plans;
  at::Tensor next_ids;          // i64
  at::Tensor after_next_ids;    // i64
  at::Tensor coefficients;      // of the main loss; 0 where there is no target
  at::Tensor mtp_coefficients;  // likewise
  at::Tensor mtp_real;          // 1 where the MTP block has a next token to pair
  at::Tensor target_place;      // i64, place in batch.main, -1 where there is no target

  mesh::MicroBatch micro_batch() const;
  const PackedSample& sample_of(int64_t token) const {
    return batch
        .samples[static_cast<std::size_t>(batch.row_sample.const_data_ptr<int64_t>()[token])];
  }
};

class StepCut {
 public:
  StepCut(const std::vector<Sample>& samples,
          const LossDenominators& denominators,
          const ModelConfig& config,
          const comm::Mesh& mesh,
          const CutOptions& options);

  const std::vector<MeshPart>& parts() const { return parts_; }
  int64_t num_micro_batches() const { return static_cast<int64_t>(parts_.size()); }

  // Of the whole step, equal on all ranks.
  std::size_t num_samples() const { return numbers_.size(); }
  int64_t number(std::size_t sample) const { return numbers_[sample]; }
  int64_t fed_tokens(std::size_t sample) const {
    return first_token_[sample + 1] - first_token_[sample];
  }
  /// In the order of the samples given.
  std::size_t index_of(int64_t number) const { return index_of_.at(number); }
  /// Fed tokens of the samples before it; of all, for num_samples().
  int64_t first_token(std::size_t sample) const { return first_token_[sample]; }
  int64_t longest_row() const { return longest_row_; }  // padding included

 private:
  std::vector<MeshPart> parts_;
  std::vector<int64_t> numbers_;
  std::vector<int64_t> first_token_;
  std::map<int64_t, std::size_t> index_of_;
  int64_t longest_row_ = 0;
};

/// The cut itself, [data rank][micro-batch]; some may be empty.
std::vector<std::vector<std::vector<Sample>>> cut_over_ranks(const std::vector<Sample>& samples,
                                                             int64_t data_ranks,
                                                             const CutOptions& options);

}  // namespace baleen::train
