#pragma once
// A whole file mapped for reading. Owns the mapping; move-only. The bytes may be read from any
// thread while the object lives. The file must not be cut meanwhile: the kernel would then end the
// program at the next read.
//
//   MappedFile file = MappedFile::open("model.safetensors");
//   std::span<const std::byte> bytes = file.bytes();

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace baleen::weights {

class MappedFile {
 public:
  /// Throws SystemError naming the file and the reason.
  static MappedFile open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, num_bytes_}; }

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

/// The content of a small text file. Throws SystemError naming the file and the reason.
std::string read_text_file(const std::filesystem::path& path);
/// Replaces a file as a whole: writes beside it, then renames. Throws SystemError.
void write_text_file(const std::filesystem::path& path, const std::string& text);

}  // namespace baleen::weights
