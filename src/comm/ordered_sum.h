#pragma once
// The one order in which ranks' values are added: a binary tree over the rank index, ((0 + 1) + (2
// + 3)) + ..., in the elements' own type.
//
//   reduce_in_order(sources, out, count, Element::kFloat32, Reduction::kSum);

#include <cstdint>
#include <span>

#include "comm/group.h"

namespace baleen::comm {

/// out[i] over sources[0][i], sources[1][i], ...; `out` may be one of the sources.
void reduce_in_order(std::span<const void* const> sources,
                     void* out,
                     int64_t count,
                     Element element,
                     Reduction reduction);

}  // namespace baleen::comm
