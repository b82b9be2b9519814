#pragma once
// Parts of tensors in files of whole ones, so that a checkpoint is the same whichever ranks wrote
// it: where the numbers of a part lie in the whole is arithmetic on its cut. Stateless.
//
//   write_slices(path, slices);         // into a file that has its header and size
//   read_slices(path, whole, slices);

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/part.h"
#include "weights/safetensors_writer.h"

namespace baleen::train {

/// Consecutive elements of a part of a tensor: the part is [part.begin, part.end) of dim `dim`, the
/// elements are [begin, begin + values.numel()) of the part laid out row by row.
struct TensorSlice {
  std::string name;            // of the stored tensor
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t dim = 0;
  mesh::Part part;
  int64_t begin = 0;
  at::Tensor values;  // written, or read into
};

/// visit(first element in the whole, first element of the slice, count), ascending: the runs of the
/// slice that lie together in the whole tensor.
void for_each_run(const TensorSlice& slice,
                  const std::function<void(int64_t, int64_t, int64_t)>& visit);

/// Throws SystemError when the disk refuses. Brings the data to the disk.
void write_slices(const std::filesystem::path& path, const std::vector<TensorSlice>& slices);

/// Throws CheckpointError naming file and tensor when the file does not hold exactly the tensors of
/// `whole`, in shape and type.
void read_slices(const std::filesystem::path& path,
                 const std::vector<weights::TensorSpec>& whole,
                 const std::vector<TensorSlice>& slices);

/// Float32, float64 or int64.
weights::DType stored_type(at::ScalarType type);

}  // namespace baleen::train
