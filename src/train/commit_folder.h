#pragma once
// A folder that appears as a whole or not at all, whenever the program or the machine stops: it is
// written as NAME.part, brought to the disk, and renamed. A pointer file beside it names the latest
// one. One thread.
//
//   CommitFolder folder(root, "iter_0000040");
//   write(folder.path() / "model.safetensors");
//   folder.commit();                        // syncs, renames
//   point_to(root, "iter_0000040");         // `latest`

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace baleen::train {

class CommitFolder {
 public:
  /// Makes ROOT/NAME.part, empty. Throws SystemError naming the folder and the reason.
  CommitFolder(std::filesystem::path root, std::string name);
  CommitFolder(const CommitFolder&) = delete;
  CommitFolder& operator=(const CommitFolder&) = delete;
  /// Removes the part when it was not committed.
  ~CommitFolder();

  const std::filesystem::path& path() const { return part_; }
  /// Where others write into the folder before it is committed.
  static std::filesystem::path path_of(const std::filesystem::path& root, const std::string& name);
  /// Throws SystemError. An older folder of that name is replaced.
  void commit();

 private:
  std::filesystem::path root_;
  std::filesystem::path part_;
  std::string name_;
  bool committed_ = false;
};

/// Makes ROOT/latest say `name`, atomically and on the disk. Throws SystemError.
void point_to(const std::filesystem::path& root, const std::string& name);
/// What ROOT/latest says; none when there is no such file. Throws CheckpointError when it names no
/// folder of ROOT.
std::optional<std::string> pointed_to(const std::filesystem::path& root);

/// Writes a text file and brings it to the disk. Throws SystemError.
void write_synced(const std::filesystem::path& path, const std::string& text);

/// Removes unfinished folders (.part) of ROOT, and of the folders that begin with `prefix` all but
/// the last `keep` by name and `current`. Faults are ignored: nothing depends on it.
void remove_old(const std::filesystem::path& root,
                const std::string& prefix,
                std::size_t keep,
                const std::string& current);

}  // namespace baleen::train
