#pragma once
// The printable stand-ins that byte-level vocabularies use for the 256 bytes: printable Latin-1
// characters stand for themselves, the other 68 bytes for U+0100 onwards. Pure, any thread.
//
//   std::optional<std::string> bytes = bytes_of_symbols("Ġthe");  // " the"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baleen::text {

/// The stand-in of each byte, as UTF-8.
const std::array<std::string, 256>& byte_symbols();

/// The bytes that a vocabulary entry spells; empty when it has a character that is no stand-in.
std::optional<std::string> bytes_of_symbols(std::string_view symbols);

}  // namespace baleen::text
