#pragma once
// One query's set of picked entries as bytes. A set of k of the v visible entries is either a
// bitmap or ascending numbers in two parts (low bits packed, high bits in unary: Elias-Fano),
// whichever is smaller for (v, k); nothing at all while every visible entry is picked. The size
// therefore depends on v and k alone. Pure functions.
//
//   encode_picks(picks, /*visible=*/900, /*topk=*/512, bytes);
//   std::size_t used = decode_picks(bytes, 900, 512, picks);

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace baleen::cache {

/// First byte of a coded set.
enum class PickCode : uint8_t {
  kBitmap = 1,  // bit e % 8 of byte e / 8 is set where entry e is picked
  kSorted = 2,  // k low parts of floor(log2(v / k)) bits, low bit first; then, from a new byte on,
                // bit (e >> low bits) + i for the i-th pick e
};

/// Size of a coded set; 0 when visible <= topk.
int64_t coded_picks_bytes(int32_t visible, int32_t topk);

/// Appends the set. `picks` ascending, min(visible, topk) of them, all in [0, visible) (checked).
void encode_picks(std::span<const int32_t> picks,
                  int32_t visible,
                  int32_t topk,
                  std::vector<uint8_t>& bytes);

/// Reads a set from the front of `bytes` into `picks` (replaced) and returns the bytes used. Throws
/// Error when they are no set that encode_picks writes for these numbers.
std::size_t decode_picks(std::span<const uint8_t> bytes,
                         int32_t visible,
                         int32_t topk,
                         std::vector<int32_t>& picks);

}  // namespace baleen::cache
