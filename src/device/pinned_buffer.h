#pragma once
// Page-locked host memory with one owner: a typed, move-only block that asynchronous copies read
// and write directly. Zeros at first.
//
//   device::PinnedBuffer<float> logits(rows * vocab);
//   cudaMemcpyAsync(logits.data(), from, logits.bytes(), cudaMemcpyDeviceToHost, stream);

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "device/cuda_check.h"

namespace baleen::device {

template <class T>
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(int64_t count) : count_(count) {
    BALEEN_CHECK(count >= 0, "count={}", count);
    if (count > 0) {
      void* memory = nullptr;
      BALEEN_CUDA_CHECK(cudaMallocHost(&memory, bytes()));
      data_ = static_cast<T*>(memory);
      std::fill_n(data_, count, T{});
    }
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~PinnedBuffer() { cudaFreeHost(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t count() const { return count_; }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(T); }
  std::span<T> span() { return {data_, static_cast<std::size_t>(count_)}; }
  std::span<const T> span() const { return {data_, static_cast<std::size_t>(count_)}; }

 private:
  T* data_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace baleen::device
