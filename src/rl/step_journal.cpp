#include "rl/step_journal.h"

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "train/commit_folder.h"
#include "weights/mapped_file.h"

namespace baleen::rl {
namespace {

namespace fs = std::filesystem;

/// The number in "rollout_12.bin" or "tokens_12.log"; -1 for other names.
int64_t rollout_of(const std::string& name) {
  const std::size_t begin = name.find('_');
  if (begin == std::string::npos || begin + 1 >= name.size() || name[begin + 1] < '0' ||
      name[begin + 1] > '9') {
    return -1;
  }
  return std::stoll(name.substr(begin + 1));
}

}  // namespace

StepJournal::StepJournal(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    throw SystemError(
        fmt::format("{}: cannot make the folder: {}", folder_.string(), error.message()));
  }
}

fs::path StepJournal::batch_file(int64_t rollout) const {
  return folder_ / fmt::format("rollout_{}.bin", rollout);
}

fs::path StepJournal::token_log(int64_t rollout) const {
  return folder_ / fmt::format("tokens_{}.log", rollout);
}

std::optional<DecodedBatch> StepJournal::load(int64_t rollout) const {
  const fs::path file = batch_file(rollout);
  if (!fs::exists(file)) {
    return std::nullopt;
  }
  return decode_batch(weights::read_text_file(file), file.string());
}

void StepJournal::store(const RolloutBatch& batch, const DataState& data) const {
  const fs::path file = batch_file(batch.rollout_id);
  fs::path part = file;
  part += ".part";
  train::write_synced(part, encode_batch(batch, data));
  std::error_code error;
  fs::rename(part, file, error);
  if (error) {
    throw SystemError(
        fmt::format("{}: cannot rename into place: {}", file.string(), error.message()));
  }
}

void StepJournal::drop_token_log(int64_t rollout) const {
  std::error_code ignored;
  fs::remove(token_log(rollout), ignored);
}

void StepJournal::forget_before(int64_t rollout) const {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ignored)) {
    const int64_t found = rollout_of(entry.path().filename().string());
    if (found >= 0 && found < rollout) {
      std::error_code unused;
      fs::remove(entry.path(), unused);
    }
  }
}

}  // namespace baleen::rl
