#include "text/utf8.h"

#include "base/check.h"

namespace baleen::text {

Utf8Step utf8_step(std::string_view bytes) {
  BALEEN_DCHECK(!bytes.empty());
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) {
    return {Utf8Kind::kCharacter, 1};
  }
  // Bounds of the second byte exclude overlong forms, surrogates and values above U+10FFFF.
  uint8_t num_bytes = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) {
    num_bytes = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    num_bytes = 3;
    low = first == 0xE0 ? 0xA0 : 0x80;
    high = first == 0xED ? 0x9F : 0xBF;
  } else if (first >= 0xF0 && first <= 0xF4) {
    num_bytes = 4;
    low = first == 0xF0 ? 0x90 : 0x80;
    high = first == 0xF4 ? 0x8F : 0xBF;
  } else {
    return {Utf8Kind::kInvalid, 1};
  }
  for (uint8_t i = 1; i < num_bytes; ++i) {
    if (i == bytes.size()) {
      return {Utf8Kind::kIncomplete, i};
    }
    if (at(i) < low || at(i) > high) {
      return {Utf8Kind::kInvalid, i};
    }
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kCharacter, num_bytes};
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    out.append(step.kind == Utf8Kind::kCharacter ? bytes.substr(0, step.num_bytes)
                                                 : kReplacementCharacter);
    bytes.remove_prefix(step.num_bytes);
  }
  return out;
}

}  // namespace baleen::text
