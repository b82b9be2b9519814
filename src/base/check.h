#pragma once
// Broken invariants and wrong arguments inside the project: print the values and the place, then
// abort. Input from outside never ends here; it becomes a Status (requests) or an Error (start-up).
//
//   BALEEN_CHECK(k <= n, "k={} n={}", k, n);

#include <string>

#include <fmt/format.h>

namespace baleen {

[[noreturn]] void check_failed(const char* file,
                               int line,
                               const char* condition,
                               const std::string& message);

}  // namespace baleen

#define BALEEN_CHECK(condition, ...)                                                         \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      ::baleen::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                        \
  } while (false)

#ifdef NDEBUG
#define BALEEN_DCHECK(condition, ...) \
  do {                                \
  } while (false)
#else
#define BALEEN_DCHECK(condition, ...) BALEEN_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
