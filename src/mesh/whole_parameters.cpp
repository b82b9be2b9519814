#include "mesh/whole_parameters.h"

#include <cstdint>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/check.h"

namespace baleen::mesh {
namespace {

int stage_of(const std::string& name, const StageSplit& stages) {
  for (int rank = 0; rank < stages.num_ranks(); ++rank) {
    if (stages.holds(rank, name)) {
      return rank;
    }
  }
  BALEEN_CHECK(false, "no stage holds {}", name);
}

}  // namespace

int num_parts(Sharding sharding, const comm::MeshShape& shape) {
  return sharding == Sharding::kTensor ? shape.tp : sharding == Sharding::kExperts ? shape.ep : 1;
}

int giver_of(const std::string& name,
             Sharding sharding,
             int index,
             const comm::MeshShape& shape,
             const StageSplit& stages) {
  const int first = comm::rank_at(shape, {.pp = stage_of(name, stages), .dp = 0, .cp = 0, .tp = 0});
  if (sharding == Sharding::kWhole) {
    return first;
  }
  return comm::members(shape, parts_axis(sharding), first)[static_cast<std::size_t>(index)];
}

model::ModelParameters whole_parameters(const model::ModelParameters& own,
                                        const comm::Mesh& mesh,
                                        const StageSplit& stages) {
  const at::NoGradGuard no_grad;
  const comm::MeshShape& shape = mesh.shape();
  comm::Group& world = mesh.group(comm::Axis::kWorld);
  model::ModelParameters whole = own;
  model::for_each_parameter(whole, [&](const model::ParameterInfo& info, at::Tensor& value) {
    const at::Tensor held = value.defined() ? value.detach().contiguous() : at::Tensor();
    value = at::Tensor();
    const ParameterShard shard = shard_of(info, mesh);
    const int parts = num_parts(shard.sharding, shape);
    for (int part = 0; part < parts; ++part) {
      const int giver = giver_of(info.name, shard.sharding, part, shape, stages);
      if (world.rank() != 0 && world.rank() != giver) {
        continue;
      }
      int64_t type = held.defined() ? static_cast<int64_t>(held.scalar_type()) : 0;
      if (world.rank() == giver && giver != 0) {
        world.send(&type, sizeof(type), 0);
        world.send(held.const_data_ptr(), static_cast<int64_t>(held.nbytes()), 0);
        continue;
      }
      std::vector<int64_t> sizes = info.shape;
      const Part range = part_of(sizes[static_cast<std::size_t>(shard.dim)], part, parts);
      at::Tensor from = held;
      if (giver != 0) {
        world.receive(&type, sizeof(type), giver);
        sizes[static_cast<std::size_t>(shard.dim)] = range.count();
        from = at::empty(sizes, at::TensorOptions(static_cast<at::ScalarType>(type)));
        world.receive(from.mutable_data_ptr(), static_cast<int64_t>(from.nbytes()), giver);
      }
      if (!value.defined()) {
        value = at::empty(info.shape, from.options());
      }
      value.narrow(shard.dim, range.begin, range.count()).copy_(from);
    }
  });
  return whole;
}

}  // namespace baleen::mesh
