#pragma once
// All ranks of a run as one of them sees it: who it is, and the groups it can be in.
//
//   std::unique_ptr<Group> pair = world.group({2, 3});  // on ranks 2 and 3

#include <memory>
#include <vector>

#include "comm/group.h"

namespace baleen::comm {

class World {
 public:
  virtual ~World() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Distinct ranks of the world, this one among them, in the order that gives their rank in the
  /// group. Every member makes the group; groups of equal members share their calls' order.
  virtual std::unique_ptr<Group> group(const std::vector<int>& members) = 0;
};

}  // namespace baleen::comm
