#pragma once
// Writes runs of elements into the tensors of a safetensors file whose header and size exist
// already (SafetensorsWriter::reserve). Several writers, each with runs of its own, may work on one
// file at once. Owned and called by one thread.
//
//   TensorSliceWriter writer("out.safetensors");
//   writer.write("w", 128, std::as_bytes(std::span(values)));   // from element 128 on
//   writer.sync();

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace baleen::weights {

class TensorSliceWriter {
 public:
  /// Throws SystemError when the file cannot be opened, CheckpointError when its header is wrong.
  explicit TensorSliceWriter(std::filesystem::path path);
  TensorSliceWriter(const TensorSliceWriter&) = delete;
  TensorSliceWriter& operator=(const TensorSliceWriter&) = delete;
  ~TensorSliceWriter();

  /// Whole elements of the tensor, which must be in the file (checked). Throws SystemError when the
  /// disk refuses.
  void write(std::string_view name, int64_t first_element, std::span<const std::byte> bytes);
  /// Brings what was written to the disk. Throws SystemError.
  void sync();

 private:
  struct Place {
    uint64_t begin = 0;  // of the file
    uint64_t end = 0;
    int64_t element_bytes = 0;
  };
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace baleen::weights
