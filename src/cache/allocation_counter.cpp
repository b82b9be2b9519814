#include "cache/allocation_counter.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> g_allocations{0};
thread_local int64_t t_allocations = 0;
}  // namespace

int64_t baleen::cache::num_allocations() {
  return g_allocations.load(std::memory_order_relaxed);
}

int64_t baleen::cache::num_allocations_of_thread() {
  return t_allocations;
}

void* operator new(std::size_t bytes) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  ++t_allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
