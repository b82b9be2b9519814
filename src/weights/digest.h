#pragma once
// Digests of weights: xxh3-64 of one tensor's bytes under its name, and one xxh3-128 root over all
// of them in a fixed order. The name is part of a tensor's digest, so two equal-shaped tensors that
// changed places are found. Pure.
//
//   uint64_t digest = tensor_digest("embed.weight", {bytes});
//   std::string root = digest_root(digests);               // 32 hexadecimal digits

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baleen::weights {

/// Digest of each tensor under its published name.
using TensorDigests = std::vector<std::pair<std::string, uint64_t>>;

/// xxh3-64 of the name, a zero byte and the parts one behind the other.
uint64_t tensor_digest(std::string_view name,
                       std::initializer_list<std::span<const std::byte>> parts);
/// xxh3-128 over names and digests in their order.
std::string digest_root(const TensorDigests& digests);
/// xxh3-128 of a text.
std::string text_digest(std::string_view text);
/// Name of the first tensor in which the two differ, one that only one of them has included; empty:
/// none.
std::string first_difference(const TensorDigests& a, const TensorDigests& b);

}  // namespace baleen::weights
