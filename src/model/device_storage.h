#pragma once
// Pools in the memory of a Torch device: allocated by Torch, so that one allocator knows all of the
// device's memory. Used on the executor's thread, in the order of its stream.
//
//   cache::PoolMemory pools(shape, formats, codecs, sizes, paint, device_storage(device));

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "cache/pool_storage.h"

namespace baleen::model {

std::shared_ptr<cache::PoolStorage> device_storage(c10::Device device);

/// A tensor [bytes] of uint8 over memory of the device that somebody else owns and keeps.
at::Tensor bytes_at(uint8_t* memory, int64_t bytes, c10::Device device);

}  // namespace baleen::model
