#include "device/tensor_map.h"

#include <string>

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "device/cuda_check.h"

namespace baleen::device {
namespace {

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);

EncodeFunction encode_function() {
  static const EncodeFunction function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    BALEEN_CUDA_CHECK(cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
      throw DeviceError(
          "CUDA: the driver has no cuTensorMapEncodeTiled; it must be of CUDA 12 or later");
    }
    return reinterpret_cast<EncodeFunction>(entry);
  }();
  return function;
}

CUtensorMapDataType data_type(MapElement element) {
  switch (element) {
    case MapElement::kByte:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case MapElement::kBf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case MapElement::kFloat:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  }
  BALEEN_CHECK(false, "element={}", static_cast<int>(element));
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

CUtensorMapSwizzle swizzle(MapSwizzle value) {
  switch (value) {
    case MapSwizzle::kNone:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case MapSwizzle::k32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case MapSwizzle::k64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case MapSwizzle::k128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  BALEEN_CHECK(false, "swizzle={}", static_cast<int>(value));
  return CU_TENSOR_MAP_SWIZZLE_NONE;
}

}  // namespace

CUtensorMap make_tensor_map(const TensorMapShape& shape) {
  const std::size_t rank = shape.extents.size();
  BALEEN_CHECK(rank >= 1 && shape.strides.size() == rank - 1 && shape.box.size() == rank,
               "extents={} strides={} box={}",
               rank,
               shape.strides.size(),
               shape.box.size());
  constexpr std::array<uint32_t, kMostMapDims> kElementStrides = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult code = encode_function()(&map,
                                          data_type(shape.element),
                                          static_cast<cuuint32_t>(rank),
                                          const_cast<void*>(shape.base),
                                          shape.extents.data(),
                                          shape.strides.data(),
                                          shape.box.data(),
                                          kElementStrides.data(),
                                          CU_TENSOR_MAP_INTERLEAVE_NONE,
                                          swizzle(shape.swizzle),
                                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    throw DeviceError("CUDA: cuTensorMapEncodeTiled refused a map of rank " + std::to_string(rank) +
                      ", code " + std::to_string(static_cast<int>(code)));
  }
  return map;
}

}  // namespace baleen::device
