#include "base/lock_counter.h"

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

#include <atomic>
#include <cstdlib>

#include <dlfcn.h>
#include <pthread.h>

extern "C" {
// Bounds of this program's code, from the linker.
extern const char __executable_start;
extern const char etext;
}

namespace {

thread_local int64_t t_own_locks = 0;
thread_local int64_t t_library_locks = 0;

using LockFunction = int (*)(pthread_mutex_t*);

LockFunction next_lock() {
  static std::atomic<LockFunction> found{nullptr};
  LockFunction function = found.load(std::memory_order_relaxed);
  if (function == nullptr) {
    function = reinterpret_cast<LockFunction>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    if (function == nullptr) {
      std::abort();
    }
    found.store(function, std::memory_order_relaxed);
  }
  return function;
}

}  // namespace

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  const auto* caller = static_cast<const char*>(__builtin_return_address(0));
  const bool own = caller >= &__executable_start && caller < &etext;
  ++(own ? t_own_locks : t_library_locks);
  return next_lock()(mutex);
}

bool baleen::locks_are_counted() {
  return true;
}
int64_t baleen::num_locks_of_thread() {
  return t_own_locks;
}
int64_t baleen::num_library_locks_of_thread() {
  return t_library_locks;
}

#else

bool baleen::locks_are_counted() {
  return false;
}
int64_t baleen::num_locks_of_thread() {
  return 0;
}
int64_t baleen::num_library_locks_of_thread() {
  return 0;
}

#endif
