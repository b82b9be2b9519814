#pragma once
// Owner of the device memory behind a DecodeModel: blocks that are filled once and freed together.
// Copies are synchronous: for loading, not for the step.
//
//   DecodeMemory memory;
//   const float* norm = memory.upload(values);              // f32
//   uint8_t* pool = memory.filled(bytes, page);             // `page` over and over

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "device/buffer.h"

namespace baleen::runner {

class DecodeMemory {
 public:
  /// `pattern` repeated to `bytes`; an empty one means zeros.
  uint8_t* filled(int64_t bytes, std::span<const uint8_t> pattern);
  template <class T>
  T* upload(std::span<const T> values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    return reinterpret_cast<T*>(filled(static_cast<int64_t>(values.size_bytes()),
                                       std::span<const uint8_t>(bytes, values.size_bytes())));
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    return upload(std::span<const T>(values));
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<device::Buffer<uint8_t>> blocks_;
  int64_t bytes_ = 0;
};

}  // namespace baleen::runner
