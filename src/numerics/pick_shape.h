#pragma once
// Where the parts of a coded set of picks lie (cache/pick_codec.h has the format): of the smaller
// of a bitmap and ascending numbers in two parts. Pure functions, host and device.
//
//   const PickShape shape = pick_shape(/*visible=*/900, /*topk=*/512);   // shape.bytes to write

#include <cstdint>

#include "numerics/host_device.h"

namespace baleen::numerics {

struct PickShape {
  bool sorted = false;    // else a bitmap
  int32_t low_bits = 0;   // of a number, in the first part
  int64_t low_bytes = 0;  // of the first part
  int64_t bytes = 0;      // of the set, with the byte that names the code
};

/// Of `topk` picks among `visible` > topk entries.
BALEEN_HOST_DEVICE inline PickShape pick_shape(int32_t visible, int32_t topk) {
  PickShape shape;
  shape.bytes = 1 + (int64_t{visible} + 7) / 8;
  if (topk <= 0) {
    return shape;
  }
  int32_t low_bits = 0;
  while (int64_t{topk} << (low_bits + 1) <= visible) {
    ++low_bits;
  }
  const int64_t low_bytes = (int64_t{topk} * low_bits + 7) / 8;
  const int64_t high_bits = int64_t{topk} + ((visible - 1) >> low_bits);
  const int64_t sorted = 1 + low_bytes + (high_bits + 7) / 8;
  if (sorted < shape.bytes) {
    shape.sorted = true;
    shape.low_bits = low_bits;
    shape.low_bytes = low_bytes;
    shape.bytes = sorted;
  }
  return shape;
}

/// The largest set of up to `most_visible` visible entries; 0 where none leaves an entry out.
BALEEN_HOST_DEVICE inline int64_t most_pick_bytes(int64_t most_visible, int32_t topk) {
  if (most_visible <= topk) {
    return 0;
  }
  // Sizes grow with the entries while the low parts have as many bits.
  int64_t most = pick_shape(static_cast<int32_t>(most_visible), topk).bytes;
  for (int64_t end = int64_t{topk} * 2; topk > 0 && end - 1 < most_visible; end *= 2) {
    const int64_t bytes = pick_shape(static_cast<int32_t>(end - 1), topk).bytes;
    most = bytes > most ? bytes : most;
  }
  return most;
}

}  // namespace baleen::numerics
