#include "weights/dtype.h"

#include <array>

namespace baleen::weights {
namespace {

struct Entry {
  DType dtype;
  const char* name;
  int64_t bytes;
};

// In the order of the enumeration.
constexpr std::array<Entry, 10> kTypes = {{
    {DType::kBf16, "BF16", 2},
    {DType::kF16, "F16", 2},
    {DType::kF32, "F32", 4},
    {DType::kF64, "F64", 8},
    {DType::kF8E4m3, "F8_E4M3", 1},
    {DType::kF8E8m0, "F8_E8M0", 1},
    {DType::kI8, "I8", 1},
    {DType::kU8, "U8", 1},
    {DType::kI32, "I32", 4},
    {DType::kI64, "I64", 8},
}};

}  // namespace

const char* dtype_name(DType dtype) {
  return kTypes[static_cast<std::size_t>(dtype)].name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Entry& entry : kTypes) {
    if (name == entry.name) {
      return entry.dtype;
    }
  }
  return std::nullopt;
}

int64_t dtype_bytes(DType dtype) {
  return kTypes[static_cast<std::size_t>(dtype)].bytes;
}

bool is_float(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

}  // namespace baleen::weights
