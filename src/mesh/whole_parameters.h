#pragma once
// The parameters of the whole model put together again from those of the ranks: for publishing,
// exporting and judging a model that is trained in parts, and to know who writes what of a
// checkpoint. Every part has one rank that gives it; copies on other ranks are equal.
//
//   model::ModelParameters whole = whole_parameters(masters.values(), mesh, stages);  // on rank 0

#include "comm/mesh.h"
#include "mesh/shard_spec.h"
#include "mesh/stage_split.h"
#include "model/parameters.h"

namespace baleen::mesh {

/// World rank that gives part `index` (of parts_axis) of the tensor of this published name.
int giver_of(const std::string& name,
             Sharding sharding,
             int index,
             const comm::MeshShape& shape,
             const StageSplit& stages);

/// Number of parts that a tensor is cut in.
int num_parts(Sharding sharding, const comm::MeshShape& shape);

/// Called by all ranks of the mesh. On world rank 0 copies of the whole tensors, elsewhere a struct
/// of undefined ones. `own` as own_parameters() gives it, or the leaves of such.
model::ModelParameters whole_parameters(const model::ModelParameters& own,
                                        const comm::Mesh& mesh,
                                        const StageSplit& stages);

}  // namespace baleen::mesh
