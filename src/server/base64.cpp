#include "server/base64.h"

#include <bit>
#include <cstddef>
#include <string_view>

namespace baleen::server {

std::string base64(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t left = bytes.size() - i;
    uint32_t group = static_cast<uint32_t>(bytes[i]) << 16U;
    group |= left > 1 ? static_cast<uint32_t>(bytes[i + 1]) << 8U : 0;
    group |= left > 2 ? bytes[i + 2] : 0U;
    text += kDigits[group >> 18U];
    text += kDigits[group >> 12U & 63U];
    text += left > 1 ? kDigits[group >> 6U & 63U] : '=';
    text += left > 2 ? kDigits[group & 63U] : '=';
  }
  return text;
}

std::string base64_of_numbers(std::span<const int32_t> numbers) {
  static_assert(std::endian::native == std::endian::little);
  return base64({reinterpret_cast<const uint8_t*>(numbers.data()), numbers.size_bytes()});
}

}  // namespace baleen::server
