#include "policy/tensorboard_file.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"

namespace baleen::policy {
namespace {

constexpr uint32_t kCastagnoli = 0x82F63B78U;  // reflected
constexpr uint32_t kMaskDelta = 0xA282EAD8U;
constexpr size_t kHeaderBytes = 12;
constexpr size_t kFooterBytes = 4;

// Field numbers and wire types of tensorflow.Event and tensorflow.Summary.
enum : uint32_t {
  kEventWallTime = (1U << 3U) | 1U,
  kEventStep = (2U << 3U) | 0U,
  kEventFileVersion = (3U << 3U) | 2U,
  kEventSummary = (5U << 3U) | 2U,
  kSummaryValue = (1U << 3U) | 2U,
  kValueTag = (1U << 3U) | 2U,
  kValueSimple = (2U << 3U) | 5U,
};

template <class Value>
void put_little(std::string& out, Value value) {
  for (size_t i = 0; i < sizeof(Value); ++i) {
    out += static_cast<char>((value >> (8U * i)) & 0xFFU);
  }
}
template <class Value>
Value get_little(std::string_view bytes) {
  Value value = 0;
  for (size_t i = 0; i < sizeof(Value); ++i) {
    value |= static_cast<Value>(static_cast<unsigned char>(bytes[i])) << (8U * i);
  }
  return value;
}

void put_varint(std::string& out, uint64_t value) {
  while (value >= 0x80U) {
    out += static_cast<char>((value & 0x7FU) | 0x80U);
    value >>= 7U;
  }
  out += static_cast<char>(value);
}
void put_bytes(std::string& out, uint32_t key, std::string_view bytes) {
  put_varint(out, key);
  put_varint(out, bytes.size());
  out += bytes;
}

uint32_t masked(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15U) | (crc << 17U)) + kMaskDelta;
}

std::string record(std::string_view event) {
  std::string out;
  put_little(out, uint64_t{event.size()});
  put_little(out, masked(out));
  out += event;
  put_little(out, masked(event));
  return out;
}

std::string event_head(double wall_seconds) {
  std::string event;
  put_varint(event, kEventWallTime);
  put_little(event, std::bit_cast<uint64_t>(wall_seconds));
  return event;
}

/// Length of the whole record at the front of `bytes`, or none if it is torn or damaged.
std::optional<size_t> record_length(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes ||
      get_little<uint32_t>(bytes.substr(8)) != masked(bytes.substr(0, 8))) {
    return std::nullopt;
  }
  const uint64_t length = get_little<uint64_t>(bytes);
  if (length > bytes.size() - kHeaderBytes || bytes.size() - kHeaderBytes - length < kFooterBytes) {
    return std::nullopt;
  }
  const std::string_view event = bytes.substr(kHeaderBytes, length);
  if (get_little<uint32_t>(bytes.substr(kHeaderBytes + length)) != masked(event)) {
    return std::nullopt;
  }
  return kHeaderBytes + length + kFooterBytes;
}

/// The step of an event written here: the field behind the wall time, or none (file version).
std::optional<int64_t> event_step(std::string_view event) {
  constexpr size_t kStepAt = 9;
  if (event.size() <= kStepAt + 1 ||
      static_cast<unsigned char>(event[kStepAt]) != static_cast<unsigned char>(kEventStep)) {
    return std::nullopt;
  }
  uint64_t step = 0;
  for (size_t i = 0; i < 10 && kStepAt + 1 + i < event.size(); ++i) {
    const auto byte = static_cast<unsigned char>(event[kStepAt + 1 + i]);
    step |= static_cast<uint64_t>(byte & 0x7FU) << (7U * i);
    if ((byte & 0x80U) == 0) {
      break;
    }
  }
  return static_cast<int64_t>(step);
}

/// Bytes at the front of `bytes` that are whole records of steps below `next_step`.
size_t kept_bytes(std::string_view bytes, int64_t next_step) {
  size_t kept = 0;
  while (const std::optional<size_t> length = record_length(bytes.substr(kept))) {
    const std::string_view event =
        bytes.substr(kept + kHeaderBytes, *length - kHeaderBytes - kFooterBytes);
    if (event_step(event).value_or(-1) >= next_step) {
      break;
    }
    kept += *length;
  }
  return kept;
}

std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value & 1U) != 0 ? (value >> 1U) ^ kCastagnoli : value >> 1U;
      }
      table[i] = value;
    }
    return table;
  }();
  uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFFU] ^ (crc >> 8U);
  }
  return ~crc;
}

TensorboardFile::TensorboardFile(const std::filesystem::path& folder, int64_t next_step)
    : path_(folder / "events.out.tfevents.baleen") {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const size_t kept = kept_bytes(file_bytes(path_), next_step);
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(kept)) != 0 ||
      lseek(descriptor_, 0, SEEK_END) < 0) {
    const std::string reason = std::strerror(errno);  // NOLINT: names only
    if (descriptor_ >= 0) {
      close(descriptor_);
    }
    throw SystemError(fmt::format("{}: {}", path_.string(), reason));
  }
  if (kept == 0) {
    std::string event = event_head(0.0);
    put_bytes(event, kEventFileVersion, "brain.Event:2");
    append(record(event));
  }
}

TensorboardFile::~TensorboardFile() {
  close(descriptor_);
}

void TensorboardFile::write(int64_t step, double wall_seconds, const Metrics& metrics) {
  std::string summary;
  for (const auto& [name, number] : metrics) {
    const auto narrow = static_cast<float>(number);
    if (!std::isfinite(narrow)) {
      continue;
    }
    std::string value;
    put_bytes(value, kValueTag, name);
    put_varint(value, kValueSimple);
    put_little(value, std::bit_cast<uint32_t>(narrow));
    put_bytes(summary, kSummaryValue, value);
  }
  std::string event = event_head(wall_seconds);
  put_varint(event, kEventStep);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, kEventSummary, summary);
  append(record(event));
}

void TensorboardFile::append(const std::string& bytes) {
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = ::write(descriptor_, bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno != EINTR) {
      const std::string reason = std::strerror(errno);  // NOLINT: names only
      throw SystemError(fmt::format("{}: {}", path_.string(), reason));
    }
    written += count > 0 ? static_cast<size_t>(count) : 0;
  }
}

}  // namespace baleen::policy
