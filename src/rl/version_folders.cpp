#include "rl/version_folders.h"

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "weights/weight_delta.h"

namespace baleen::rl {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kKeptVersions = 2;

}  // namespace

VersionFolders::VersionFolders(fs::path parent, fs::path source)
    : parent_(std::move(parent)), source_(std::move(source)) {
  std::error_code error;
  fs::create_directories(parent_, error);
  if (error) {
    throw SystemError(
        fmt::format("publish_to: {} cannot be made: {}", parent_.string(), error.message()));
  }
}

fs::path VersionFolders::folder(int64_t version) const {
  return parent_ / fmt::format("v{}", version);
}

fs::path VersionFolders::delta(int64_t version) const {
  return parent_ / fmt::format("v{}.delta", version);
}

void VersionFolders::write(const train::PublishedWeights& whole, int64_t version) const {
  fs::remove_all(folder(version));
  train::publish_folder(whole, source_, folder(version), {.contract = {}, .version = version});
  if (fs::exists(folder(version - 1))) {
    const fs::path beside = delta(version).string() + ".part";
    weights::write_delta(folder(version - 1), folder(version), beside);
    fs::rename(beside, delta(version));
  }
  fs::remove_all(folder(version - kKeptVersions));
  fs::remove(delta(version - kKeptVersions));
}

}  // namespace baleen::rl
