#pragma once
// One look at the front of a byte string that should be UTF-8: a whole character, a stretch that
// can no longer become one, or the beginning of one. Pure; any thread.
//
//   Utf8Step step = utf8_step(bytes);
//   if (step.kind == Utf8Kind::kCharacter) out.append(bytes.substr(0, step.num_bytes));

#include <cstdint>
#include <string>
#include <string_view>

namespace baleen::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind : uint8_t {
  kCharacter,   // a well-formed character
  kInvalid,     // no continuation makes these bytes a character; they stand for one U+FFFD
  kIncomplete,  // all bytes given are the beginning of a character
};

struct Utf8Step {
  Utf8Kind kind = Utf8Kind::kInvalid;
  uint8_t num_bytes = 1;  // bytes this step takes, at least 1
};

/// `bytes` is not empty. A run that breaks off counts as one invalid stretch up to the byte that
/// broke it ("maximal subpart", Unicode 15 §3.9), as Python's and Rust's lossy decoders have it.
Utf8Step utf8_step(std::string_view bytes);

/// `bytes` with every invalid or incomplete stretch replaced by U+FFFD.
std::string utf8_lossy(std::string_view bytes);

}  // namespace baleen::text
