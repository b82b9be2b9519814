#pragma once
// Which part of every parameter a rank holds: heads, output groups and vocabulary rows over the
// tensor ranks, experts over the expert ranks, blocks over the pipeline stages, everything else
// whole. By name and role, so that a checkpoint of one mesh can be read on another.
//
//   validate(shape, config);
//   model::ModelParameters own = own_parameters(whole, mesh, stages);
//   ParameterShard shard = shard_of(info, mesh);  // info as for_each_parameter gives it

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/mesh.h"
#include "mesh/part.h"
#include "mesh/stage_split.h"
#include "model/parameters.h"

namespace baleen::mesh {

/// Over which ranks a parameter is cut; for its gradient this says over which it is partial.
enum class Sharding : uint8_t {
  kWhole,    // copies; every token rank has its tokens' share of the gradient
  kTensor,   // heads, output groups, vocabulary
  kExperts,  // experts of a stack
};

struct ParameterShard {
  Sharding sharding = Sharding::kWhole;
  int64_t dim = 0;  // that is cut
  Part part;        // of that dim
};

/// Throws ConfigError naming axis and key when the model cannot be cut so.
void validate(const comm::MeshShape& shape, const ModelConfig& config);

ParameterShard shard_of(const model::ParameterInfo& info, const comm::Mesh& mesh);

/// Throws ConfigError naming tensor and axis where a cut goes through the blocks of a quantised
/// matrix, which would get other scales than the whole one's.
void validate_formats(const comm::MeshShape& shape, model::ModelParameters& whole);

/// Ranks that hold the parts of one tensor, in order.
comm::Axis parts_axis(Sharding sharding);
/// Ranks over which the gradient of one part is to be added.
comm::Axis gradient_axis(Sharding sharding);

/// Copies of this rank's parts; tensors that its stages do not hold are undefined.
model::ModelParameters own_parameters(const model::ModelParameters& whole,
                                      const comm::Mesh& mesh,
                                      const StageSplit& stages);

/// The whole tensor from the parts of all ranks of parts_axis, on each of them.
at::Tensor whole_tensor(const at::Tensor& own, const ParameterShard& shard, const comm::Mesh& mesh);

}  // namespace baleen::mesh
