#include "comm/mesh.h"

#include <fmt/format.h>

namespace baleen::comm {

Mesh::Mesh(World& world, const MeshShape& shape) : shape_(shape), rank_(world.rank()) {
  validate(shape);
  if (shape.world_size() != world.size()) {
    throw ConfigError(fmt::format(
        "mesh {} needs {} ranks, the run has {}", shape.name(), shape.world_size(), world.size()));
  }
  place_ = place_of(shape, rank_);
  for (std::size_t axis = 0; axis < kNumAxes; ++axis) {
    groups_[axis] = world.group(members(shape, static_cast<Axis>(axis), rank_));
  }
}

}  // namespace baleen::comm
