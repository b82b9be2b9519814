#pragma once
// The mesh as one rank sees it: its place and its group on every axis. Made once per rank from the
// world, which must outlive it; used by that rank's thread.
//
//   Mesh mesh(world, {.dp = 2, .tp = 2});
//   mesh.group(Axis::kTp).all_reduce(...);

#include <array>
#include <memory>

#include "comm/mesh_shape.h"
#include "comm/world.h"

namespace baleen::comm {

class Mesh {
 public:
  /// Throws ConfigError when the shape is not that of `world.size()` ranks.
  Mesh(World& world, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }
  const MeshPlace& place() const { return place_; }
  int rank() const { return rank_; }
  Group& group(Axis axis) const { return *groups_[static_cast<std::size_t>(axis)]; }

 private:
  static constexpr std::size_t kNumAxes = static_cast<std::size_t>(Axis::kWorld) + 1;

  MeshShape shape_;
  int rank_;
  MeshPlace place_;
  std::array<std::unique_ptr<Group>, kNumAxes> groups_;
};

}  // namespace baleen::comm
