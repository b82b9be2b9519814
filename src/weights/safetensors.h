#pragma once
// Reads a safetensors file through a memory map: 8 bytes of header length, a JSON header, raw
// little-endian data. Everything the header says is checked at open, before any data is read:
// length, offsets inside the file without overlap or gap, size = shape x type, known types.
// Move-only; one object may be read from any thread.
//
//   SafetensorsFile file = SafetensorsFile::open("model.safetensors");
//   const StoredTensor* tensor = file.find("embed.weight");
//   std::span<const std::byte> raw = file.bytes(*tensor);   // may be unaligned

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/dtype.h"
#include "weights/mapped_file.h"

namespace baleen::weights {

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data section
  uint64_t end = 0;

  int64_t num_elements() const;
};

std::string shape_text(std::span<const int64_t> shape);  // "[2, 3]"

class SafetensorsFile {
 public:
  /// Throws SystemError when the file cannot be mapped, CheckpointError naming the file, the tensor
  /// (if one is at fault) and the reason when its header is wrong.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// In the order of their data.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;
  std::span<const std::byte> bytes(const StoredTensor& tensor) const;
  /// All data without the header.
  uint64_t data_bytes() const { return file_.bytes().size() - data_offset_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsFile(std::filesystem::path path, MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}
  std::filesystem::path path_;
  MappedFile file_;
  uint64_t data_offset_ = 0;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace baleen::weights
