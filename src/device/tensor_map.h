#pragma once
// Makes the descriptor of a tiled copy (TMA) for a tensor in device memory. The driver is asked at
// run time, so that nothing links against it. A map is plain data: build it once, pass it by value
// as a `const __grid_constant__ CUtensorMap` parameter; it holds the tensor's address. Making one
// allocates nothing on the host: passes of prompts make them in every step.
//
//   CUtensorMap map = device::make_tensor_map({.base = keys, .element = device::MapElement::kByte,
//       .extents = {128, 64, pages}, .strides = {128, 8448}, .box = {128, 64, 1},
//       .swizzle = device::MapSwizzle::k128});

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include <cuda.h>

#include "base/check.h"

namespace baleen::device {

enum class MapElement { kByte, kBf16, kFloat };
enum class MapSwizzle { kNone, k32, k64, k128 };

inline constexpr std::size_t kMostMapDims = 5;

/// Up to five numbers, in place.
template <class T>
class MapNumbers {
 public:
  MapNumbers() = default;
  MapNumbers(std::initializer_list<T> numbers) : count_(numbers.size()) {
    BALEEN_CHECK(count_ <= kMostMapDims, "{} numbers", count_);
    std::copy(numbers.begin(), numbers.end(), numbers_.begin());
  }
  std::size_t size() const { return count_; }
  const T* data() const { return numbers_.data(); }

 private:
  std::array<T, kMostMapDims> numbers_ = {};
  std::size_t count_ = 0;
};

struct TensorMapShape {
  const void* base = nullptr;  // 16-byte aligned device address
  MapElement element = MapElement::kByte;
  MapNumbers<uint64_t> extents;  // elements per dim, the contiguous dim first; 1 to 5 dims
  MapNumbers<uint64_t> strides;  // bytes between steps of dims 1.., multiples of 16
  MapNumbers<uint32_t> box;      // elements per dim of one copy, each <= 256
  MapSwizzle swizzle = MapSwizzle::kNone;
};

/// Throws DeviceError when the driver refuses the shape or is missing. Rows outside the tensor read
/// 0.
CUtensorMap make_tensor_map(const TensorMapShape& shape);

}  // namespace baleen::device
