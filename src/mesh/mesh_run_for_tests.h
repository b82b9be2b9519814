#pragma once
// One forward and backward of a batch on a mesh of thread ranks, and everything that comes out of
// it put together as one rank would have it. Ranks that hold the same must hold the same bits, or
// it is noted.
//
//   MeshOutcome outcome = run_on_mesh({.name = "tp2", .shape = {.tp = 2}}, whole, batch, numerics);

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/mesh_shapes_for_tests.h"
#include "mesh/token_layout.h"
#include "model/parameters.h"
#include "ops/numerics_config.h"

namespace baleen::mesh {

/// Rows cut alike into samples; ids by row.
struct MeshBatch {
  int64_t num_rows = 0;
  std::vector<int64_t> samples;
  at::Tensor ids;             // i64 [rows, tokens]
  at::Tensor next_ids;        // within each sample, 0 behind its end
  at::Tensor after_next_ids;  // likewise
  at::Tensor weights;         // of the main loss, [rows, tokens]; 0 where there is no target
  at::Tensor mtp_weights;

  int64_t row_tokens() const { return ids.size(1); }
};

/// Pseudo-random ids; some tokens have no weight; weights add up to 1, MTP weights to 0.3.
MeshBatch make_batch(int64_t num_rows, const std::vector<int64_t>& samples, int64_t vocab_size);

using TensorsByName = std::map<std::string, at::Tensor>;

struct MeshOutcome {
  std::vector<double> losses;              // by step
  std::vector<double> gradient_norms;      // likewise
  at::Tensor logprobs;                     // [rows, tokens], of the first step
  at::Tensor mtp_logprobs;                 // likewise
  TensorsByName gradients;                 // of every trained tensor, whole, of the first step
  TensorsByName values;                    // after the last step
  std::vector<std::string> disagreements;  // between ranks that must agree; should be empty
};

/// Forward, backward and a step of AdamW over ZeRO ranges, `steps` times on the same batch.
MeshOutcome run_on_mesh(const MeshCase& mesh_case,
                        const model::ModelParameters& whole,
                        const MeshBatch& batch,
                        const ops::Numerics& numerics);

/// The same by the plain forward of the model, row by row where rows are packed; no mesh.
MeshOutcome run_plainly(const model::ModelParameters& whole,
                        const MeshBatch& batch,
                        const ops::Numerics& numerics);

/// Largest difference of any tensor of `a`, relative to its largest number; adds the name.
double largest_difference(const TensorsByName& a, const TensorsByName& b, std::string* worst);

}  // namespace baleen::mesh
