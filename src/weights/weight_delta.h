#pragma once
// What changed between two published versions of a model, as one file: per tensor nothing, runs of
// changed bytes, or all of it; with the digest of what must come out. For engines that see a slow
// disk or none of the trainer's: at the rates of reinforcement learning most bytes stay as they
// are. Both folders have weights.json; the layout of their files is the same. One thread.
//
//   DeltaReport report = write_delta("out/v3", "out/v4", "out/v4.delta");
//   apply_delta("engine/v3", "out/v4.delta", "engine/v4");    // then /update_weights_from_disk

#include <cstdint>
#include <filesystem>

namespace baleen::weights {

struct DeltaReport {
  int64_t changed_tensors = 0;
  int64_t delta_bytes = 0;  // of the file
  int64_t full_bytes = 0;   // of the tensors of a whole folder
};

/// Throws CheckpointError naming folder and file when the two are not versions of one model or one
/// has no weights.json; SystemError when `delta` cannot be written.
DeltaReport write_delta(const std::filesystem::path& before,
                        const std::filesystem::path& after,
                        const std::filesystem::path& delta);

/// Makes `target`, which appears whole: files of `base`, changed as `delta` says. Throws
/// CheckpointError: `base` is not the version, or has not the bytes, that the delta begins at; the
/// delta is damaged (file, or the tensor whose digest is wrong); `target` is there already.
void apply_delta(const std::filesystem::path& base,
                 const std::filesystem::path& delta,
                 const std::filesystem::path& target);

}  // namespace baleen::weights
