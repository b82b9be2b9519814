#pragma once
// Element types of stored tensors, by their safetensors names. F8_E8M0 holds UE8M0 scale bytes, I8
// holds pairs of E2M1 codes where a weight is FP4.

#include <cstdint>
#include <optional>
#include <string_view>

namespace baleen::weights {

enum class DType : uint8_t {
  kBf16,
  kF16,
  kF32,
  kF64,
  kF8E4m3,
  kF8E8m0,
  kI8,
  kU8,
  kI32,
  kI64,
};

const char* dtype_name(DType dtype);  // "BF16", "F8_E4M3", ...
std::optional<DType> dtype_from_name(std::string_view name);
int64_t dtype_bytes(DType dtype);
bool is_float(DType dtype);  // BF16, F16, F32, F64: values that need no scale

}  // namespace baleen::weights
