#pragma once
// A TensorBoard event file of scalars. Framing and the few protocol buffer fields are written by
// hand. A resumed run first cuts away the records of steps it will make again, and whatever a crash
// left torn, so the curves read as those of an uninterrupted run. One owner, one thread.
//
//   TensorboardFile file("out/tensorboard", next_step);
//   file.write(step, wall_seconds, metrics);        // readable at once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "policy/numbers.h"

namespace baleen::policy {

class TensorboardFile {
 public:
  /// Makes `folder` and the file events.out.tfevents.baleen in it; records of steps below
  /// `next_step` are kept. Throws SystemError.
  TensorboardFile(const std::filesystem::path& folder, int64_t next_step);
  TensorboardFile(const TensorboardFile&) = delete;
  TensorboardFile& operator=(const TensorboardFile&) = delete;
  ~TensorboardFile();

  /// One record with all values (as float32; those that are not finite are left out).
  void write(int64_t step, double wall_seconds, const Metrics& metrics);

  const std::filesystem::path& path() const { return path_; }

 private:
  void append(const std::string& bytes);
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// CRC-32C (Castagnoli) of `bytes`, starting from 0.
uint32_t crc32c(std::string_view bytes);

}  // namespace baleen::policy
