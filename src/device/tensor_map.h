#pragma once
// Makes the descriptor of a tiled copy (TMA) for a tensor in device memory. The driver is asked at
// run time, so that nothing links against it. A map is plain data: build it once, pass it by value
// as a `const __grid_constant__ CUtensorMap` parameter; it holds the tensor's address.
//
//   CUtensorMap map = device::make_tensor_map({.base = keys, .element = device::MapElement::kByte,
//       .extents = {128, 64, pages}, .strides = {128, 8448}, .box = {128, 64, 1},
//       .swizzle = device::MapSwizzle::k128});

#include <cstdint>
#include <vector>

#include <cuda.h>

namespace baleen::device {

enum class MapElement { kByte, kBf16, kFloat };
enum class MapSwizzle { kNone, k32, k64, k128 };

struct TensorMapShape {
  const void* base = nullptr;  // 16-byte aligned device address
  MapElement element = MapElement::kByte;
  std::vector<uint64_t> extents;  // elements per dim, the contiguous dim first; 1 to 5 dims
  std::vector<uint64_t> strides;  // bytes between steps of dims 1.., multiples of 16
  std::vector<uint32_t> box;      // elements per dim of one copy, each <= 256
  MapSwizzle swizzle = MapSwizzle::kNone;
};

/// Throws DeviceError when the driver refuses the shape or is missing. Rows outside the tensor read
/// 0.
CUtensorMap make_tensor_map(const TensorMapShape& shape);

}  // namespace baleen::device
