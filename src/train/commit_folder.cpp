#include "train/commit_folder.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "weights/mapped_file.h"

namespace baleen::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPart = ".part";
constexpr const char* kLatest = "latest";

[[noreturn]] void refuse(const fs::path& path, const char* what, int error) {
  throw SystemError(fmt::format(
      "{}: cannot {}: {}", path.string(), what, std::generic_category().message(error)));
}

/// An open file or folder, closed with its owner.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags)
      : value_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (value_ < 0) {
      refuse(path, "open", errno);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(value_); }
  int value() const { return value_; }

 private:
  int value_;
};

void sync_path(const fs::path& path, int flags) {
  const Descriptor file(path, flags);
  if (::fsync(file.value()) != 0) {
    refuse(path, "bring to the disk", errno);
  }
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    refuse(to, "rename into place", errno);
  }
}

}  // namespace

CommitFolder::CommitFolder(fs::path root, std::string name)
    : root_(std::move(root)), part_(path_of(root_, name)), name_(std::move(name)) {
  std::error_code error;
  fs::remove_all(part_, error);
  fs::create_directories(part_, error);
  if (error) {
    refuse(part_, "make the folder", error.value());
  }
}

fs::path CommitFolder::path_of(const fs::path& root, const std::string& name) {
  return root / (name + kPart);
}

CommitFolder::~CommitFolder() {
  if (!committed_) {
    std::error_code ignored;
    fs::remove_all(part_, ignored);
  }
}

void CommitFolder::commit() {
  for (const fs::directory_entry& entry : fs::directory_iterator(part_)) {
    sync_path(entry.path(), O_RDONLY);
  }
  sync_path(part_, O_RDONLY | O_DIRECTORY);
  const fs::path target = root_ / name_;
  if (fs::exists(target)) {
    const fs::path old = root_ / (name_ + ".old" + kPart);
    std::error_code ignored;
    fs::remove_all(old, ignored);
    rename_path(target, old);
  }
  rename_path(part_, target);
  committed_ = true;
  sync_path(root_, O_RDONLY | O_DIRECTORY);
}

void write_synced(const fs::path& path, const std::string& text) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(file.value(), text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) {
      refuse(path, "write", errno);
    }
    written += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  if (::fsync(file.value()) != 0) {
    refuse(path, "bring to the disk", errno);
  }
}

void point_to(const fs::path& root, const std::string& name) {
  const fs::path part = root / (std::string(kLatest) + kPart);
  write_synced(part, name + "\n");
  rename_path(part, root / kLatest);
  sync_path(root, O_RDONLY | O_DIRECTORY);
}

std::optional<std::string> pointed_to(const fs::path& root) {
  const fs::path file = root / kLatest;
  if (!fs::exists(file)) {
    return std::nullopt;
  }
  std::string name = weights::read_text_file(file);
  while (!name.empty() && name.back() == '\n') {
    name.pop_back();
  }
  if (name.empty() || name.find('/') != std::string::npos || !fs::is_directory(root / name)) {
    throw CheckpointError(
        fmt::format("{}: names \"{}\", which is no folder beside it", file.string(), name));
  }
  return name;
}

void remove_old(const fs::path& root,
                const std::string& prefix,
                std::size_t keep,
                const std::string& current) {
  std::error_code ignored;
  std::vector<std::string> whole;
  std::vector<std::string> doomed;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !entry.is_directory(ignored)) {
      continue;
    }
    if (name.ends_with(kPart)) {
      doomed.push_back(name);
    } else if (name != current) {
      whole.push_back(name);
    }
  }
  std::sort(whole.begin(), whole.end());
  const std::size_t others = keep > 0 ? keep - 1 : 0;  // beside the current one
  for (std::size_t i = 0; i + others < whole.size(); ++i) {
    // First out of the way, so that no half-removed folder looks whole.
    const std::string part = whole[i] + kPart;
    if (::rename((root / whole[i]).c_str(), (root / part).c_str()) == 0) {
      doomed.push_back(part);
    }
  }
  for (const std::string& name : doomed) {
    fs::remove_all(root / name, ignored);
  }
}

}  // namespace baleen::train
