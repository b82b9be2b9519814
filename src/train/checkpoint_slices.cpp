#include "train/checkpoint_slices.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <span>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "weights/safetensors.h"
#include "weights/tensor_slice_writer.h"

namespace baleen::train {
namespace {

void check_file(const weights::SafetensorsFile& file,
                const std::vector<weights::TensorSpec>& whole) {
  const std::string path = file.path().string();
  std::set<std::string, std::less<>> expected;
  for (const weights::TensorSpec& spec : whole) {
    expected.insert(spec.name);
    const weights::StoredTensor* stored = file.find(spec.name);
    if (stored == nullptr) {
      throw CheckpointError(fmt::format("{}: {} is missing", path, spec.name));
    }
    if (stored->shape != spec.shape || stored->dtype != spec.dtype) {
      throw CheckpointError(fmt::format("{}: {} is {} {}, expected {} {}",
                                        path,
                                        spec.name,
                                        weights::dtype_name(stored->dtype),
                                        weights::shape_text(stored->shape),
                                        weights::dtype_name(spec.dtype),
                                        weights::shape_text(spec.shape)));
    }
  }
  for (const weights::StoredTensor& stored : file.tensors()) {
    if (!expected.contains(stored.name)) {
      throw CheckpointError(
          fmt::format("{}: {} belongs to no trained parameter of this run; freeze the same "
                      "parameters and keep the optimizer, or skip its state",
                      path,
                      stored.name));
    }
  }
}

}  // namespace

weights::DType stored_type(at::ScalarType type) {
  return type == at::kDouble  ? weights::DType::kF64
         : type == at::kFloat ? weights::DType::kF32
                              : weights::DType::kI64;
}

void for_each_run(const TensorSlice& slice,
                  const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  int64_t outer = 1;
  int64_t inner = 1;
  for (std::size_t d = 0; d < slice.shape.size(); ++d) {
    (static_cast<int64_t>(d) < slice.dim ? outer : inner) *=
        static_cast<int64_t>(d) == slice.dim ? 1 : slice.shape[d];
  }
  const int64_t whole_row = slice.shape[static_cast<std::size_t>(slice.dim)] * inner;
  const int64_t part_row = slice.part.count() * inner;
  const int64_t end = slice.begin + slice.values.numel();
  BALEEN_CHECK(slice.begin >= 0 && end <= outer * part_row,
               "{}: elements [{}, {}) of {}",
               slice.name,
               slice.begin,
               end,
               outer * part_row);
  for (int64_t at = slice.begin; at < end;) {
    const int64_t row = at / part_row;
    const int64_t in_row = at % part_row;
    // Rows of a part that is whole lie together.
    const int64_t together =
        part_row == whole_row ? end - at : std::min(end - at, part_row - in_row);
    visit(row * whole_row + slice.part.begin * inner + in_row, at - slice.begin, together);
    at += together;
  }
}

void write_slices(const std::filesystem::path& path, const std::vector<TensorSlice>& slices) {
  weights::TensorSliceWriter writer(path);
  for (const TensorSlice& slice : slices) {
    const at::Tensor host = slice.values.detach().to(at::kCPU).contiguous();
    const auto element = static_cast<std::size_t>(host.element_size());
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(host.const_data_ptr()),
                                           host.nbytes());
    for_each_run(slice, [&](int64_t whole, int64_t own, int64_t count) {
      writer.write(slice.name,
                   whole,
                   bytes.subspan(static_cast<std::size_t>(own) * element,
                                 static_cast<std::size_t>(count) * element));
    });
  }
  writer.sync();
}

void read_slices(const std::filesystem::path& path,
                 const std::vector<weights::TensorSpec>& whole,
                 const std::vector<TensorSlice>& slices) {
  const at::NoGradGuard no_grad;
  const auto file = weights::SafetensorsFile::open(path);
  check_file(file, whole);
  for (const TensorSlice& slice : slices) {
    const std::span<const std::byte> stored = file.bytes(*file.find(slice.name));
    const bool in_place = slice.values.device().is_cpu() && slice.values.is_contiguous();
    const at::Tensor host =
        in_place ? slice.values
                 : at::empty(slice.values.sizes(), slice.values.options().device(at::kCPU));
    auto* target = static_cast<std::byte*>(host.mutable_data_ptr());
    const auto element = static_cast<std::size_t>(host.element_size());
    for_each_run(slice, [&](int64_t from, int64_t own, int64_t count) {
      std::memcpy(target + static_cast<std::size_t>(own) * element,
                  stored.data() + static_cast<std::size_t>(from) * element,
                  static_cast<std::size_t>(count) * element);
    });
    if (!in_place) {
      slice.values.copy_(host);
    }
  }
}

}  // namespace baleen::train
