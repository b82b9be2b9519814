#include "rl/token_log.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/error.h"
#include "weights/mapped_file.h"

namespace baleen::rl {
namespace {

constexpr int32_t kRestart = -1;  // in place of an id

struct Record {
  int64_t sample = 0;
  int64_t version = 0;
  int32_t id = 0;
  float logprob = 0.0F;
  uint64_t checksum = 0;  // of the bytes before it
};
static_assert(sizeof(Record) == 32);

uint64_t checksum_of(const Record& record) {
  return XXH3_64bits(&record, offsetof(Record, checksum));
}

[[noreturn]] void log_fault(const std::filesystem::path& path, const char* what, int error) {
  throw SystemError(fmt::format(
      "{}: cannot {}: {}", path.string(), what, std::generic_category().message(error)));
}

}  // namespace

TokenLog::TokenLog(std::filesystem::path path) : path_(std::move(path)) {
  std::size_t good = 0;
  if (std::filesystem::exists(path_)) {
    const std::string bytes = weights::read_text_file(path_);
    while (good + sizeof(Record) <= bytes.size()) {
      Record record;
      std::memcpy(&record, bytes.data() + good, sizeof(Record));
      if (record.checksum != checksum_of(record)) {
        break;
      }
      good += sizeof(Record);
      if (record.id == kRestart) {
        known_.erase(record.sample);
        continue;
      }
      LoggedTokens& tokens = known_[record.sample];
      tokens.ids.push_back(record.id);
      tokens.logprobs.push_back(record.logprob);
      tokens.versions.push_back(record.version);
    }
  }
  for (const auto& [sample, tokens] : known_) {
    known_tokens_ += static_cast<int64_t>(tokens.ids.size());
  }
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    log_fault(path_, "open", errno);
  }
  if (::ftruncate(descriptor_, static_cast<off_t>(good)) != 0) {
    const int error = errno;
    ::close(descriptor_);
    log_fault(path_, "cut a torn record away", error);
  }
}

TokenLog::~TokenLog() {
  ::close(descriptor_);
}

const LoggedTokens* TokenLog::find(int64_t sample) const {
  const auto found = known_.find(sample);
  return found == known_.end() ? nullptr : &found->second;
}

void TokenLog::append(int64_t sample, int32_t id, float logprob, int64_t version) {
  Record record{.sample = sample, .version = version, .id = id, .logprob = logprob};
  record.checksum = checksum_of(record);
  const auto* bytes = reinterpret_cast<const char*>(&record);
  pending_.insert(pending_.end(), bytes, bytes + sizeof(Record));
}

void TokenLog::restart(int64_t sample) {
  append(sample, kRestart, 0.0F, 0);
}

void TokenLog::flush() {
  std::size_t written = 0;
  while (written < pending_.size()) {
    const ssize_t count =
        ::write(descriptor_, pending_.data() + written, pending_.size() - written);
    if (count < 0 && errno != EINTR) {
      log_fault(path_, "write", errno);
    }
    written += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  pending_.clear();
}

}  // namespace baleen::rl
