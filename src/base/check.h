#pragma once
// Broken invariants and wrong arguments inside the project: print the values and the place, then
// abort. Input from outside never ends here; it becomes a Status (requests) or an Error (start-up).
//
//   BALEEN_CHECK(k <= n, "k={} n={}", k, n);

#include <string>

#if defined(__CUDACC__)
// nvcc 13 cannot evaluate the consteval format checks of fmt 9; device files get a plain formatter.
#include <sstream>
#include <string_view>
#else
#include <fmt/format.h>
#endif

namespace baleen {

[[noreturn]] void check_failed(const char* file,
                               int line,
                               const char* condition,
                               const std::string& message);

#if defined(__CUDACC__)
/// Puts the values one by one into the places marked {}.
template <class... Values>
std::string check_message(std::string_view text = "", const Values&... values) {
  std::ostringstream message;
  const auto put = [&](const auto& value) {
    const std::size_t place = text.find("{}");
    message << text.substr(0, place) << value;
    text.remove_prefix(place == std::string_view::npos ? text.size() : place + 2);
  };
  (put(values), ...);
  message << text;
  return message.str();
}
#endif

}  // namespace baleen

#if defined(__CUDACC__)
#define BALEEN_CHECK_MESSAGE(...) ::baleen::check_message("" __VA_ARGS__)
#else
#define BALEEN_CHECK_MESSAGE(...) ::fmt::format("" __VA_ARGS__)
#endif

#define BALEEN_CHECK(condition, ...)                                                             \
  do {                                                                                           \
    if (!(condition)) [[unlikely]] {                                                             \
      ::baleen::check_failed(__FILE__, __LINE__, #condition, BALEEN_CHECK_MESSAGE(__VA_ARGS__)); \
    }                                                                                            \
  } while (false)

#ifdef NDEBUG
#define BALEEN_DCHECK(condition, ...) \
  do {                                \
  } while (false)
#else
#define BALEEN_DCHECK(condition, ...) BALEEN_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
