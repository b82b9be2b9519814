#pragma once
// How the weight of a linear layer is stored in the checkpoint, which decides how its input is
// rounded.
//
//   ops::LinearFormat format = ops::LinearFormat::kFp8;

#include <cstdint>

namespace baleen::ops {

enum class LinearFormat : uint8_t {
  kPlain,  // bf16 or float weight; the input is used as it is
  kFp8,    // e4m3 with one scale per 128 x 128 tile; the input is e4m3 in blocks of 128
  kFp4,    // e2m1 with one scale per 32 inputs; the input is e4m3 in blocks of 128 as well
};

}  // namespace baleen::ops
