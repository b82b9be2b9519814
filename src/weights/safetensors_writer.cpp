#include "weights/safetensors_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <boost/json.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"

namespace baleen::weights {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw SystemError(fmt::format(
      "{}: cannot {}: {}", path.string(), what, std::generic_category().message(errno)));
}

void write_at(int descriptor,
              const std::filesystem::path& path,
              const void* data,
              std::size_t num_bytes,
              uint64_t offset) {
  const char* next = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t written = ::pwrite(descriptor, next, num_bytes, static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail(path, "write");
    }
    next += written;
    num_bytes -= static_cast<std::size_t>(written);
    offset += static_cast<uint64_t>(written);
  }
}

}  // namespace

int64_t TensorSpec::num_bytes() const {
  int64_t bytes = dtype_bytes(dtype);
  for (const int64_t extent : shape) {
    BALEEN_CHECK(extent >= 0 && !__builtin_mul_overflow(bytes, extent, &bytes), "{}", name);
  }
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path,
                                     std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), part_path_(path_) {
  part_path_ += ".part";
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    const int64_t a_bytes = dtype_bytes(a.dtype);
    const int64_t b_bytes = dtype_bytes(b.dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  boost::json::object header;
  if (!metadata.empty()) {
    boost::json::object pairs;
    for (const auto& [key, value] : metadata) {
      pairs[key] = value;
    }
    header["__metadata__"] = std::move(pairs);
  }
  uint64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    const uint64_t end = offset + static_cast<uint64_t>(tensor.num_bytes());
    header[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                           {"shape", boost::json::array(tensor.shape.begin(), tensor.shape.end())},
                           {"data_offsets", {offset, end}}};
    const bool unique = slots_.emplace(tensor.name, Slot{offset, end}).second;
    BALEEN_CHECK(unique, "tensor {} is listed twice", tensor.name);
    offset = end;
  }
  std::string text = boost::json::serialize(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t header_bytes = text.size();
  for (auto& [name, slot] : slots_) {
    slot.next += 8 + header_bytes;
    slot.end += 8 + header_bytes;
  }
  descriptor_ = ::open(part_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    fail(path_, "create");
  }
  char length[8];
  std::memcpy(length, &header_bytes, sizeof(length));
  write_at(descriptor_, path_, length, sizeof(length), 0);
  write_at(descriptor_, path_, text.data(), text.size(), sizeof(length));
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    ::unlink(part_path_.c_str());
  }
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = slots_.find(name);
  BALEEN_CHECK(found != slots_.end(), "tensor {} is not in the list", name);
  Slot& slot = found->second;
  BALEEN_CHECK(bytes.size() <= slot.end - slot.next,
               "tensor {}: {} bytes more, {} expected",
               name,
               bytes.size(),
               slot.end - slot.next);
  write_at(descriptor_, path_, bytes.data(), bytes.size(), slot.next);
  slot.next += bytes.size();
}

void SafetensorsWriter::reserve() {
  uint64_t end = 0;
  for (const auto& [name, slot] : slots_) {
    end = std::max(end, slot.end);
  }
  if ((end > 0 && ::ftruncate(descriptor_, static_cast<off_t>(end)) != 0) ||
      ::rename(part_path_.c_str(), path_.c_str()) != 0) {
    fail(path_, "write");
  }
  ::close(descriptor_);
  descriptor_ = -1;
}

void SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) {
    BALEEN_CHECK(slot.next == slot.end, "tensor {}: {} bytes missing", name, slot.end - slot.next);
  }
  if (::fsync(descriptor_) != 0 || ::rename(part_path_.c_str(), path_.c_str()) != 0) {
    fail(path_, "finish");
  }
  ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace baleen::weights
