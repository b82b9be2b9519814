#include "weights/mapped_file.h"

#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace baleen::weights {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int error) {
  throw SystemError(fmt::format(
      "{}: cannot {}: {}", path.string(), what, std::generic_category().message(error)));
}

}  // namespace

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    fail(path, "open", errno);
  }
  struct stat status{};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    const int error = S_ISREG(status.st_mode) ? errno : EINVAL;
    ::close(descriptor);
    fail(path, "use as a file", error);
  }
  MappedFile file;
  file.num_bytes_ = static_cast<std::size_t>(status.st_size);
  if (file.num_bytes_ > 0) {
    void* mapping = ::mmap(nullptr, file.num_bytes_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    const int error = errno;
    ::close(descriptor);
    if (mapping == MAP_FAILED) {
      file.num_bytes_ = 0;
      fail(path, "map", error);
    }
    file.data_ = static_cast<const std::byte*>(mapping);
  } else {
    ::close(descriptor);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), num_bytes_);
  }
}

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    fail(path, "open", errno);
  }
  std::ostringstream text;
  text << stream.rdbuf();
  if (stream.bad()) {
    fail(path, "read", EIO);
  }
  return std::move(text).str();
}

void write_text_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::path temporary = path;
  temporary += ".part";
  {
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    stream << text;
    stream.close();
    if (!stream) {
      const int error = errno != 0 ? errno : EIO;
      std::error_code ignored;
      std::filesystem::remove(temporary, ignored);
      fail(path, "write", error);
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    fail(path, "rename into place", error.value());
  }
}

}  // namespace baleen::weights
