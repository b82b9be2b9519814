#pragma once
// The memory that pools lie in, and what is done to it besides reading and writing rows: the host's
// by default, a device's where the model runs on one. Shared by the pools and whoever moves their
// bytes; used on the executor's thread.
//
//   std::shared_ptr<PoolStorage> storage = PoolStorage::host();
//   std::shared_ptr<uint8_t> region = storage->allocate(bytes);   // zeros
//   storage->copy(from, to, row_bytes);                           // several ...
//   storage->finish_copies();                                     // ... carried out by now

#include <cstdint>
#include <memory>

namespace baleen::cache {

class PoolStorage {
 public:
  virtual ~PoolStorage() = default;
  static std::shared_ptr<PoolStorage> host();

  /// Zeros, freed with the last owner. Throws SystemError naming the bytes when there are not so
  /// many.
  virtual std::shared_ptr<uint8_t> allocate(int64_t bytes) = 0;
  virtual void fill(uint8_t* memory, uint8_t value, int64_t bytes) = 0;
  /// Both stretches lie in this kind of memory. Copies may be put off and gathered until
  /// finish_copies(): until then neither stretch is written by others, and no copy reads what an
  /// earlier one writes.
  virtual void copy(const uint8_t* from, uint8_t* to, int64_t bytes) = 0;
  virtual void finish_copies() = 0;
};

}  // namespace baleen::cache
