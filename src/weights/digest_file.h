#pragma once
// weights.json beside a published checkpoint: what it is the n-th version of, by which contract it
// is to be computed with, and the digest of every tensor's values. Whoever loads the folder into a
// running engine compares. Any thread.
//
//   write_digest_file(folder, {.version = 3, .contract = contract, .values = digests});
//   if (const auto told = read_digest_file(folder)) { ... told->values ... }

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "weights/digest.h"

namespace baleen::weights {

struct DigestFile {
  int64_t version = 0;
  std::string contract;  // empty: not told
  TensorDigests values;  // of the float32 values that a forward computes with
};

inline constexpr const char* kDigestFileName = "weights.json";

/// Throws SystemError naming the file.
void write_digest_file(const std::filesystem::path& folder, const DigestFile& digests);
/// None where the folder has no such file. Throws ConfigError naming file and key when it is not
/// one, or when its root is not that of its digests.
std::optional<DigestFile> read_digest_file(const std::filesystem::path& folder);

}  // namespace baleen::weights
