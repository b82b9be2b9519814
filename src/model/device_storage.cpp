#include "model/device_storage.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"

namespace baleen::model {
namespace {

class DeviceStorage final : public cache::PoolStorage {
 public:
  explicit DeviceStorage(at::Device device) : device_(device) {}

  std::shared_ptr<uint8_t> allocate(int64_t bytes) override {
    const c10::InferenceMode inference;
    try {
      const at::Tensor memory = at::zeros({bytes}, at::TensorOptions(at::kByte).device(device_));
      // The deleter shares the tensor, which owns the memory.
      return {memory.mutable_data_ptr<uint8_t>(), [memory](uint8_t*) {}};
    } catch (const c10::OutOfMemoryError&) {
      throw SystemError("cache memory: " + device_.str() + " has no " + std::to_string(bytes) +
                        " bytes left");
    }
  }

  void fill(uint8_t* memory, uint8_t value, int64_t bytes) override {
    const c10::InferenceMode inference;
    bytes_at(memory, bytes, device_).fill_(value);
  }

  /// Neighbours become one copy: rows of a page follow each other on both sides.
  void copy(const uint8_t* from, uint8_t* to, int64_t bytes) override {
    for (Copy& other : copies_) {
      if (other.from + other.bytes == from && other.to + other.bytes == to) {
        other.bytes += bytes;
        return;
      }
    }
    copies_.push_back({from, to, bytes});
  }

  void finish_copies() override {
    const c10::InferenceMode inference;
    for (const Copy& copy : copies_) {
      bytes_at(copy.to, copy.bytes, device_)
          .copy_(bytes_at(const_cast<uint8_t*>(copy.from), copy.bytes, device_),
                 /*non_blocking=*/true);
    }
    copies_.clear();
  }

 private:
  struct Copy {
    const uint8_t* from;
    uint8_t* to;
    int64_t bytes;
  };

  at::Device device_;
  std::vector<Copy> copies_;
};

}  // namespace

at::Tensor bytes_at(uint8_t* memory, int64_t bytes, c10::Device device) {
  return at::for_blob(memory, {bytes})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

std::shared_ptr<cache::PoolStorage> device_storage(c10::Device device) {
  return std::make_shared<DeviceStorage>(device);
}

}  // namespace baleen::model
