#pragma once
// Device memory with one owner: a typed, move-only block from cudaMalloc. Copies are synchronous,
// so this type is for set-up, tests and benchmarks; the step loop only passes `data()` along.
//
//   auto scores = device::Buffer<float>::from_host(values);
//   launch({.scores = scores.data()}, stream.get());
//   std::vector<float> back = scores.to_host();   // after stream.synchronize()

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "device/cuda_check.h"

namespace baleen::device {

template <class T>
class Buffer {
 public:
  Buffer() = default;
  /// `count` elements, not initialised. Zero is legal and owns nothing.
  explicit Buffer(int64_t count) : count_(count) {
    BALEEN_CHECK(count >= 0, "count={}", count);
    if (count > 0) {
      void* memory = nullptr;
      BALEEN_CUDA_CHECK(cudaMalloc(&memory, bytes()));
      data_ = static_cast<T*>(memory);
    }
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Buffer() { cudaFree(data_); }

  static Buffer from_host(std::span<const T> values) {
    Buffer buffer(static_cast<int64_t>(values.size()));
    buffer.copy_from_host(values);
    return buffer;
  }
  static Buffer from_host(const std::vector<T>& values) {
    return from_host(std::span<const T>(values));
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t count() const { return count_; }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(T); }

  /// `values` must have exactly `count()` elements.
  void copy_from_host(std::span<const T> values) {
    BALEEN_CHECK(
        static_cast<int64_t>(values.size()) == count_, "values={} count={}", values.size(), count_);
    if (count_ > 0) {
      BALEEN_CUDA_CHECK(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
      wait();
    }
  }
  std::vector<T> to_host() const {
    std::vector<T> values(static_cast<std::size_t>(count_));
    if (count_ > 0) {
      BALEEN_CUDA_CHECK(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    }
    return values;
  }
  /// Every byte becomes `value`; 0xFF paints floats and bf16 with NaN.
  void fill_bytes(int value) {
    if (count_ > 0) {
      BALEEN_CUDA_CHECK(cudaMemset(data_, value, bytes()));
      wait();
    }
  }

 private:
  /// A memset, and the end of a copy from pageable memory, are asynchronous to streams that do not
  /// wait for the default stream.
  static void wait() { BALEEN_CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy)); }

  T* data_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace baleen::device
