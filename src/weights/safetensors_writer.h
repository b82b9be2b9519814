#pragma once
// Writes a safetensors file piece by piece: the header comes from the list of tensors, then data is
// appended tensor by tensor in any order. The file appears under its name only when it is complete:
// until then it is `NAME.part`, removed if the writer goes away unfinished. Tensors are laid out by
// element size (largest first), then by name, behind a header padded to 8 bytes, so each one is
// aligned. Owned and called by one thread.
//
//   SafetensorsWriter writer("out.safetensors", {{"w", DType::kF32, {2}}});
//   writer.append("w", std::as_bytes(std::span(values)));
//   writer.finish();

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/dtype.h"

namespace baleen::weights {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t num_bytes() const;
};

class SafetensorsWriter {
 public:
  /// Throws SystemError when the file cannot be made. Names must be unique.
  SafetensorsWriter(std::filesystem::path path,
                    std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  /// Adds the next bytes of one tensor. Throws SystemError when the disk refuses.
  void append(std::string_view name, std::span<const std::byte> bytes);
  /// Instead of append() and finish(): gives the file its full size and its name; what is in it
  /// comes from TensorSliceWriters, of this or of other programs.
  void reserve();
  /// Checks that every tensor is complete, brings the data to the disk and gives the file its name.
  void finish();

 private:
  struct Slot {
    uint64_t next = 0;  // file offset of the next byte
    uint64_t end = 0;
  };
  std::filesystem::path path_;
  std::filesystem::path part_path_;
  int descriptor_ = -1;
  std::map<std::string, Slot, std::less<>> slots_;
};

}  // namespace baleen::weights
