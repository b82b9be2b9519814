#include "cache/pool_storage.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"

namespace baleen::cache {
namespace {

class HostStorage final : public PoolStorage {
 public:
  std::shared_ptr<uint8_t> allocate(int64_t bytes) override {
    // calloc leaves large regions untouched until a page of them is used.
    auto* memory = static_cast<uint8_t*>(std::calloc(static_cast<std::size_t>(bytes), 1));
    if (memory == nullptr) {
      throw SystemError("cache memory: the system has no " + std::to_string(bytes) + " bytes");
    }
    return {memory, [](uint8_t* old) { std::free(old); }};
  }
  void fill(uint8_t* memory, uint8_t value, int64_t bytes) override {
    std::memset(memory, value, static_cast<std::size_t>(bytes));
  }
  void copy(const uint8_t* from, uint8_t* to, int64_t bytes) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void finish_copies() override {}
};

}  // namespace

std::shared_ptr<PoolStorage> PoolStorage::host() {
  return std::make_shared<HostStorage>();
}

}  // namespace baleen::cache
