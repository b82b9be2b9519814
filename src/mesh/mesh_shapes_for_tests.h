#pragma once
// The mesh shapes that one rank is held against, by name, for the tests of several rooms.
//
//   for (const MeshCase& mesh_case : all_mesh_shapes()) ...

#include <string>
#include <vector>

#include "comm/mesh_shape.h"
#include "mesh/pipeline_schedule.h"

namespace baleen::mesh {

struct MeshCase {
  std::string name;
  comm::MeshShape shape = {};
  bool zig_zag = false;
  int chunks_per_rank = 1;
  int micro_batches = 1;  // of each data rank
  int steps = 1;
  PipelineOrder order = PipelineOrder::k1F1B;
};

/// The 23 of the specification.
inline std::vector<MeshCase> all_mesh_shapes() {
  std::vector<MeshCase> cases = {
      {.name = "tp2", .shape = {.tp = 2}},
      {.name = "tp4", .shape = {.tp = 4}},
      {.name = "tp2_sp", .shape = {.tp = 2, .sequence_parallel = true}},
      {.name = "tp4_sp", .shape = {.tp = 4, .sequence_parallel = true}},
      {.name = "pp2", .shape = {.pp = 2}},
      {.name = "pp4", .shape = {.pp = 4}},
      {.name = "pp2_interleaved", .shape = {.pp = 2}, .chunks_per_rank = 2},
      {.name = "cp2", .shape = {.cp = 2}},
      {.name = "cp4", .shape = {.cp = 4}},
      {.name = "cp2_zigzag", .shape = {.cp = 2}, .zig_zag = true},
      {.name = "cp4_zigzag", .shape = {.cp = 4}, .zig_zag = true},
      {.name = "ep2", .shape = {.dp = 2, .ep = 2}},
      {.name = "ep4", .shape = {.dp = 4, .ep = 4}},
      {.name = "ep8", .shape = {.dp = 8, .ep = 8}},
      {.name = "dp2", .shape = {.dp = 2}},
      {.name = "dp4", .shape = {.dp = 4}},
      {.name = "tp2_pp2", .shape = {.pp = 2, .tp = 2}},
      {.name = "tp2_dp2", .shape = {.dp = 2, .tp = 2}},
      {.name = "pp2_dp2", .shape = {.pp = 2, .dp = 2}},
      {.name = "cp2_ep2", .shape = {.cp = 2, .ep = 2}},
      {.name = "tp2_pp2_dp2", .shape = {.pp = 2, .dp = 2, .tp = 2}},
      {.name = "tp2_cp2_ep2", .shape = {.cp = 2, .tp = 2, .ep = 2}},
      {.name = "pp2_cp2_dp2", .shape = {.pp = 2, .dp = 2, .cp = 2}},
  };
  for (MeshCase& mesh_case : cases) {
    mesh_case.micro_batches = mesh_case.shape.pp > 1 ? 4 / mesh_case.shape.dp : 1;
  }
  return cases;
}

/// Those of the 23 with these names, in the order of the list.
inline std::vector<MeshCase> mesh_shapes_named(const std::vector<std::string>& names) {
  std::vector<MeshCase> result;
  for (const MeshCase& mesh_case : all_mesh_shapes()) {
    for (const std::string& name : names) {
      if (mesh_case.name == name) {
        result.push_back(mesh_case);
      }
    }
  }
  return result;
}

}  // namespace baleen::mesh
