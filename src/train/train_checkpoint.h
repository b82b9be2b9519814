#pragma once
// Saves and restores a trainer, so that a run continues with the same bits. ROOT holds one folder
// per saved step and `latest`; a folder holds
//   model.safetensors   every tensor by published name (experts of a layer as one, "*" for the id),
//                       masters in their own type, routing tables as integers
//   optim.safetensors   NAME.m and NAME.v, or NAME.momentum
//   meta.json           format version, step, settings, the parameters and their storage
//   NAME                what else the run has to remember
//   checksums.json      length and XXH3-64 of the other files
// `latest` is written last. Tensors are read from a memory map into the place they are used in. One
// thread, or one for each rank of a mesh.
//
//   save_checkpoint("out/ckpt", trainer, {.settings = settings, .keep = 2});
//   if (restore_checkpoint("out/ckpt", trainer, settings)) { ... }   // else a fresh start

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "comm/mesh.h"
#include "mesh/stage_split.h"
#include "train/run_settings.h"
#include "train/trainer.h"

namespace baleen::train {

struct SaveOptions {
  RunSettings settings;
  std::size_t keep = 2;  // checkpoints, at least one
  /// Further files of the checkpoint, by name: what else a run has to remember.
  std::map<std::string, std::string> extra_files = {};
};

/// The rank of a mesh that saves or restores; all of them call alike, and each writes and reads its
/// own parts. The files are those of one rank, so any mesh continues what any other saved. By
/// default there is one rank.
struct CheckpointRank {
  const comm::Mesh* mesh = nullptr;
  const mesh::StageSplit* stages = nullptr;  // with a mesh

  bool is_first() const { return mesh == nullptr || mesh->rank() == 0; }
  void wait() const {
    if (mesh != nullptr) {
      mesh->group(comm::Axis::kWorld).barrier();
    }
  }
};

/// Throws SystemError naming file and reason; what `latest` named before stays.
void save_checkpoint(const std::filesystem::path& root,
                     const Trainer& trainer,
                     const SaveOptions& options,
                     const CheckpointRank& rank = {});

enum class LoadOptimizer : uint8_t {
  kRequired,
  kSkip,  // moments start at zero
};

/// False when ROOT has no checkpoint. Throws CheckpointError naming file and tensor or setting: a
/// setting that differs, a tensor that is missing, of another shape or type, or in excess, a file
/// whose checksum is wrong.
bool restore_checkpoint(const std::filesystem::path& root,
                        Trainer& trainer,
                        const RunSettings& settings,
                        LoadOptimizer load_optimizer = LoadOptimizer::kRequired,
                        const CheckpointRank& rank = {});

/// An extra file of the latest checkpoint, whose checksum was verified when it was restored. Throws
/// CheckpointError when there is none of that name.
std::string checkpoint_file(const std::filesystem::path& root, const std::string& name);

/// Step that the latest checkpoint of ROOT would continue with, -1 for none.
int64_t saved_step(const std::filesystem::path& root);

}  // namespace baleen::train
