#pragma once
// How the ranks of a run are laid out over the parallel axes, as arithmetic. From the outermost to
// the innermost axis: pipeline stages (pp), data (dp), context (cp), tensor (tp); ranks that differ
// in tp alone are neighbours. Experts have no axis of their own: the ranks that hold different
// tokens, in order, are cut into blocks of `ep`, and each block holds every expert once.
//
//   MeshShape shape{.pp = 2, .tp = 2};
//   std::vector<int> peers = members(shape, Axis::kTp, rank);

#include <cstdint>
#include <string>
#include <vector>

namespace baleen::comm {

struct MeshShape {
  int pp = 1;
  int dp = 1;
  int cp = 1;
  int tp = 1;
  int ep = 1;
  bool sequence_parallel = false;  // tp ranks split tokens outside of the attention core

  int world_size() const { return pp * dp * cp * tp; }
  /// Ranks of a stage that hold different tokens.
  int token_ranks() const { return dp * cp * (sequence_parallel ? tp : 1); }
  /// As "pp2.dp1.cp1.tp4+sp.ep1".
  std::string name() const;
};

/// Throws ConfigError naming the axis.
void validate(const MeshShape& shape);

/// Coordinates of a rank.
struct MeshPlace {
  int pp = 0;
  int dp = 0;
  int cp = 0;
  int tp = 0;
  friend bool operator==(const MeshPlace&, const MeshPlace&) = default;
};

MeshPlace place_of(const MeshShape& shape, int rank);
int rank_at(const MeshShape& shape, const MeshPlace& place);

/// The groups that a rank is a member of. "Same" stands for all axes that are not named.
enum class Axis : uint8_t {
  kTp,
  kCp,
  kDp,
  kPp,
  kSequence,        // different tokens of the same rows: cp, and tp with sequence parallelism
  kTokens,          // different tokens of the step: dp, and all of kSequence
  kReplicas,        // the same shard of tensor-parallel parameters: dp and cp
  kExperts,         // a block of ranks that holds every expert once
  kExpertReplicas,  // the same experts
  kPipelineEnds,    // first and last stage; every stage between them is alone
  kWorld,
};

/// World ranks of the group of `axis` that `rank` is in, in the order of the group.
std::vector<int> members(const MeshShape& shape, Axis axis, int rank);

}  // namespace baleen::comm
