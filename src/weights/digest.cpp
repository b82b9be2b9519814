#include "weights/digest.h"

#include <algorithm>

#include <fmt/format.h>
#include <xxhash.h>

namespace baleen::weights {
namespace {

std::string hex_of(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {}
  ~Hasher() { XXH3_freeState(state_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  XXH3_state_t* get() { return state_; }

 private:
  XXH3_state_t* state_;
};

}  // namespace

uint64_t tensor_digest(std::string_view name,
                       std::initializer_list<std::span<const std::byte>> parts) {
  Hasher hasher;
  XXH3_64bits_reset(hasher.get());
  XXH3_64bits_update(hasher.get(), name.data(), name.size());
  XXH3_64bits_update(hasher.get(), "", 1);
  for (const std::span<const std::byte> part : parts) {
    XXH3_64bits_update(hasher.get(), part.data(), part.size());
  }
  return XXH3_64bits_digest(hasher.get());
}

std::string digest_root(const TensorDigests& digests) {
  std::string text;
  for (const auto& [name, digest] : digests) {
    text += fmt::format("{} {:016x}\n", name, digest);
  }
  return text_digest(text);
}

std::string text_digest(std::string_view text) {
  return hex_of(XXH3_128bits(text.data(), text.size()));
}

std::string first_difference(const TensorDigests& a, const TensorDigests& b) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size() || i >= b.size()) {
      return i < a.size() ? a[i].first : b[i].first;
    }
    if (a[i] != b[i]) {
      return a[i].first;
    }
  }
  return {};
}

}  // namespace baleen::weights
