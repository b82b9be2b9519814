#include "weights/tensor_slice_writer.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"
#include "weights/safetensors.h"

namespace baleen::weights {
namespace {

[[noreturn]] void refuse_slice(const std::filesystem::path& path, const char* what) {
  throw SystemError(fmt::format(
      "{}: cannot {}: {}", path.string(), what, std::generic_category().message(errno)));
}

}  // namespace

TensorSliceWriter::TensorSliceWriter(std::filesystem::path path) : path_(std::move(path)) {
  {
    const auto file = SafetensorsFile::open(path_);
    const uint64_t data_begin = std::filesystem::file_size(path_) - file.data_bytes();
    for (const StoredTensor& tensor : file.tensors()) {
      places_[tensor.name] = {data_begin + tensor.begin,
                              data_begin + tensor.end,
                              static_cast<int64_t>(dtype_bytes(tensor.dtype))};
    }
  }
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) {
    refuse_slice(path_, "open");
  }
}

TensorSliceWriter::~TensorSliceWriter() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void TensorSliceWriter::write(std::string_view name,
                              int64_t first_element,
                              std::span<const std::byte> bytes) {
  const auto found = places_.find(name);
  BALEEN_CHECK(found != places_.end(), "tensor {} is not in the file", name);
  const Place& place = found->second;
  uint64_t offset = place.begin + static_cast<uint64_t>(first_element) *
                                      static_cast<uint64_t>(place.element_bytes);
  BALEEN_CHECK(first_element >= 0 && offset + bytes.size() <= place.end &&
                   bytes.size() % static_cast<std::size_t>(place.element_bytes) == 0,
               "tensor {}: {} bytes from element {} on",
               name,
               bytes.size(),
               first_element);
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      refuse_slice(path_, "write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void TensorSliceWriter::sync() {
  if (::fsync(descriptor_) != 0) {
    refuse_slice(path_, "bring to the disk");
  }
}

}  // namespace baleen::weights
