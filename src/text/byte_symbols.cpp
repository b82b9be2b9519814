#include "text/byte_symbols.h"

namespace baleen::text {
namespace {

constexpr uint32_t kEndOfSymbols = 0x144;  // U+0100 + 68 bytes without a printable character

bool is_printable_latin1(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

/// Code point of the stand-in of each byte.
std::array<uint32_t, 256> make_code_points() {
  std::array<uint32_t, 256> points{};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    points[byte] = is_printable_latin1(byte) ? byte : next++;
  }
  return points;
}

}  // namespace

const std::array<std::string, 256>& byte_symbols() {
  static const std::array<std::string, 256> symbols = [] {
    std::array<std::string, 256> made;
    const auto points = make_code_points();
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t point = points[byte];
      if (point < 0x80) {
        made[byte] = {static_cast<char>(point)};
      } else {
        made[byte] = {static_cast<char>(0xC0U | (point >> 6U)),
                      static_cast<char>(0x80U | (point & 0x3FU))};
      }
    }
    return made;
  }();
  return symbols;
}

std::optional<std::string> bytes_of_symbols(std::string_view symbols) {
  static const std::array<int16_t, kEndOfSymbols> byte_of_point = [] {
    std::array<int16_t, kEndOfSymbols> made{};
    made.fill(-1);
    const auto points = make_code_points();
    for (size_t byte = 0; byte < 256; ++byte) {
      made[points[byte]] = static_cast<int16_t>(byte);
    }
    return made;
  }();
  std::string bytes;
  for (size_t i = 0; i < symbols.size(); ++i) {
    uint32_t point = static_cast<uint8_t>(symbols[i]);
    if (point >= 0x80) {  // stand-ins have at most two bytes in UTF-8
      if ((point & 0xE0U) != 0xC0U || i + 1 == symbols.size()) {
        return std::nullopt;
      }
      point = ((point & 0x1FU) << 6U) | (static_cast<uint8_t>(symbols[++i]) & 0x3FU);
    }
    if (point >= kEndOfSymbols || byte_of_point[point] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(byte_of_point[point]);
  }
  return bytes;
}

}  // namespace baleen::text
