#pragma once
// Cutting a length into nearly equal consecutive parts; equal ones where the length allows it.
//
//   Part own = part_of(vocab_size, rank, num_ranks);

#include <cstdint>

namespace baleen::mesh {

struct Part {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const { return end - begin; }
};

constexpr Part part_of(int64_t length, int64_t index, int64_t parts) {
  return {length * index / parts, length * (index + 1) / parts};
}

}  // namespace baleen::mesh
