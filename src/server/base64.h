#pragma once
// Bytes as text in answers: base64 with padding (RFC 4648, section 4). Pure, any thread.
//
//   object["routed_experts"] = base64_of_numbers(experts);

#include <cstdint>
#include <span>
#include <string>

namespace baleen::server {

std::string base64(std::span<const uint8_t> bytes);

/// Of the numbers as 32-bit integers, low byte first.
std::string base64_of_numbers(std::span<const int32_t> numbers);

}  // namespace baleen::server
