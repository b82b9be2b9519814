#include "comm/mesh_shape.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace baleen::comm {
namespace {

/// Position of a place among the ranks of its stage that hold different tokens.
int token_index(const MeshShape& shape, const MeshPlace& place) {
  const int row = place.dp * shape.cp + place.cp;
  return shape.sequence_parallel ? row * shape.tp + place.tp : row;
}

/// Whether two ranks are in one group of `axis`.
bool together(const MeshShape& shape, Axis axis, const MeshPlace& a, const MeshPlace& b) {
  const bool pp = a.pp == b.pp;
  const bool dp = a.dp == b.dp;
  const bool cp = a.cp == b.cp;
  const bool tp = a.tp == b.tp;
  const bool tp_or_split = tp || shape.sequence_parallel;
  const int index_a = token_index(shape, a);
  const int index_b = token_index(shape, b);
  switch (axis) {
    case Axis::kTp:
      return pp && dp && cp;
    case Axis::kCp:
      return pp && dp && tp;
    case Axis::kDp:
      return pp && cp && tp;
    case Axis::kPp:
      return dp && cp && tp;
    case Axis::kSequence:
      return pp && dp && tp_or_split;
    case Axis::kTokens:
      return pp && tp_or_split;
    case Axis::kReplicas:
      return pp && tp;
    case Axis::kExperts:
      return pp && tp_or_split && index_a / shape.ep == index_b / shape.ep;
    case Axis::kExpertReplicas:
      return pp && tp_or_split && index_a % shape.ep == index_b % shape.ep;
    case Axis::kPipelineEnds: {
      const auto is_end = [&](const MeshPlace& p) { return p.pp == 0 || p.pp == shape.pp - 1; };
      return dp && cp && tp && (pp || (is_end(a) && is_end(b)));
    }
    case Axis::kWorld:
      return true;
  }
  return false;
}

}  // namespace

std::string MeshShape::name() const {
  return fmt::format(
      "pp{}.dp{}.cp{}.tp{}{}.ep{}", pp, dp, cp, tp, sequence_parallel ? "+sp" : "", ep);
}

void validate(const MeshShape& shape) {
  const auto check = [](const char* axis, int ranks) {
    if (ranks < 1) {
      throw ConfigError(fmt::format("mesh axis {}: expected at least 1 rank, got {}", axis, ranks));
    }
  };
  check("pp", shape.pp);
  check("dp", shape.dp);
  check("cp", shape.cp);
  check("tp", shape.tp);
  check("ep", shape.ep);
  if (shape.token_ranks() % shape.ep != 0) {
    throw ConfigError(
        fmt::format("mesh axis ep: {} does not divide the {} ranks of a stage that "
                    "hold different tokens (dp x cp{})",
                    shape.ep,
                    shape.token_ranks(),
                    shape.sequence_parallel ? " x tp" : ""));
  }
}

MeshPlace place_of(const MeshShape& shape, int rank) {
  BALEEN_CHECK(rank >= 0 && rank < shape.world_size(), "rank {} of {}", rank, shape.world_size());
  MeshPlace place;
  place.tp = rank % shape.tp;
  rank /= shape.tp;
  place.cp = rank % shape.cp;
  rank /= shape.cp;
  place.dp = rank % shape.dp;
  place.pp = rank / shape.dp;
  return place;
}

int rank_at(const MeshShape& shape, const MeshPlace& place) {
  return ((place.pp * shape.dp + place.dp) * shape.cp + place.cp) * shape.tp + place.tp;
}

std::vector<int> members(const MeshShape& shape, Axis axis, int rank) {
  const MeshPlace own = place_of(shape, rank);
  std::vector<int> result;
  for (int other = 0; other < shape.world_size(); ++other) {
    if (together(shape, axis, own, place_of(shape, other))) {
      result.push_back(other);
    }
  }
  return result;
}

}  // namespace baleen::comm
