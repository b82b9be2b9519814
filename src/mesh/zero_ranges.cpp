#include "mesh/zero_ranges.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/zeros.h>

#include "base/check.h"
#include "mesh/collectives.h"

namespace baleen::mesh {
namespace {

constexpr int64_t kNormBlock = 1024;  // elements whose squares are added first; divides a stretch
constexpr int64_t kBucket = int64_t{1} << 16;  // elements of every owner that travel at once

double sum_of_squares(const at::Tensor& x) {
  return x.to(at::kDouble).square().sum().item<double>();
}

}  // namespace

ZeroRanges::ZeroRanges(std::vector<RankTensor> tensors, const comm::Mesh& mesh)
    : tensors_(std::move(tensors)), mesh_(mesh) {
  for (const Sharding sharding : {Sharding::kWhole, Sharding::kTensor, Sharding::kExperts}) {
    add_row(sharding, false);
    add_row(sharding, true);  // counts in the norm on one end only
  }
}

void ZeroRanges::add_row(Sharding sharding, bool on_pipeline_ends) {
  Row row;
  row.sharding = sharding;
  row.group = &mesh_.group(gradient_axis(sharding));
  int64_t length = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const RankTensor& tensor = tensors_[i];
    if (tensor.sharding == sharding && tensor.on_pipeline_ends == on_pipeline_ends) {
      BALEEN_CHECK(tensor.value.is_contiguous() && tensor.gradient.sizes() == tensor.value.sizes(),
                   "{} cannot be cut",
                   tensor.name);
      row.tensors.push_back(i);
      row.counts_in_norm = tensor.counts_in_norm;
      length += tensor.value.numel();
    }
  }
  if (row.tensors.empty()) {
    return;
  }
  const int64_t blocks = (length + kNormBlock - 1) / kNormBlock;
  const int64_t owners = row.group->size();
  row.stretch = (blocks + owners - 1) / owners * kNormBlock;
  row.gradient = at::zeros({row.stretch}, tensors_[row.tensors[0]].gradient.options());
  const int64_t first = row.group->rank() * row.stretch;
  int64_t begin = 0;
  for (const std::size_t i : row.tensors) {
    const int64_t count = tensors_[i].value.numel();
    const int64_t own_begin = std::max(first, begin);
    const int64_t own_end = std::min(first + row.stretch, begin + count);
    if (own_begin < own_end) {
      const int64_t own = own_end - own_begin;
      pieces_.push_back({.name = tensors_[i].name,
                         .tensor = i,
                         .begin = own_begin - begin,
                         .value = tensors_[i].value.view({-1}).narrow(0, own_begin - begin, own),
                         .gradient = row.gradient.narrow(0, own_begin - first, own)});
    }
    begin += count;
  }
  rows_.push_back(std::move(row));
}

void ZeroRanges::for_each_overlap(
    const Row& row,
    int64_t from,
    int64_t count,
    const std::function<void(std::size_t, int64_t, int64_t, int64_t)>& visit) const {
  int64_t begin = 0;
  for (const std::size_t i : row.tensors) {
    const int64_t numel = tensors_[i].value.numel();
    const int64_t first = std::max(from, begin);
    const int64_t end = std::min(from + count, begin + numel);
    if (first < end) {
      visit(i, first - begin, first - from, end - first);
    }
    begin += numel;
  }
}

void ZeroRanges::reduce_gradients() {
  sum_over_pipeline_ends(tensors_, mesh_);
  for (Row& row : rows_) {
    const int64_t owners = row.group->size();
    for (int64_t offset = 0; offset < row.stretch; offset += kBucket) {
      const int64_t size = std::min(kBucket, row.stretch - offset);
      at::Tensor all = at::zeros({owners, size}, row.gradient.options());
      for (int64_t owner = 0; owner < owners; ++owner) {
        const at::Tensor own = all[owner];
        for_each_overlap(row,
                         owner * row.stretch + offset,
                         size,
                         [&](std::size_t i, int64_t first, int64_t place, int64_t count) {
                           own.narrow(0, place, count)
                               .copy_(tensors_[i].gradient.view({-1}).narrow(0, first, count));
                         });
      }
      row.gradient.narrow(0, offset, size)
          .copy_(reduce_scatter_rows(all.view({owners * size}), *row.group));
    }
  }
}

double ZeroRanges::gradient_norm() const {
  double total = 0.0;
  for (const Row& row : rows_) {
    const int64_t blocks = row.stretch / kNormBlock;
    at::Tensor own = at::zeros({blocks}, at::kDouble);
    for (int64_t block = 0; block < blocks; ++block) {
      own[block] = sum_of_squares(row.gradient.narrow(0, block * kNormBlock, kNormBlock));
    }
    const at::Tensor all = all_gather_rows(own, *row.group);
    if (row.counts_in_norm) {
      double sum = 0.0;
      for (int64_t block = 0; block < all.size(0); ++block) {
        sum += all.const_data_ptr<double>()[block];
      }
      total += row.group->rank() == 0 ? sum : 0.0;  // once per row
    }
  }
  return std::sqrt(sum_of_numbers(total, mesh_.group(comm::Axis::kWorld)));
}

void ZeroRanges::gather_values() {
  for (const Row& row : rows_) {
    const at::TensorOptions options = tensors_[row.tensors[0]].value.options();
    const int64_t owners = row.group->size();
    for (int64_t offset = 0; offset < row.stretch; offset += kBucket) {
      const int64_t size = std::min(kBucket, row.stretch - offset);
      const auto part = [&](std::size_t i, int64_t first, int64_t count) {
        return tensors_[i].value.view({-1}).narrow(0, first, count);
      };
      at::Tensor own = at::zeros({size}, options);
      for_each_overlap(row,
                       row.group->rank() * row.stretch + offset,
                       size,
                       [&](std::size_t i, int64_t first, int64_t place, int64_t count) {
                         own.narrow(0, place, count).copy_(part(i, first, count));
                       });
      const at::Tensor all = all_gather_rows(own, *row.group);
      for (int64_t owner = 0; owner < owners; ++owner) {
        for_each_overlap(row,
                         owner * row.stretch + offset,
                         size,
                         [&](std::size_t i, int64_t first, int64_t place, int64_t count) {
                           part(i, first, count).copy_(all.narrow(0, owner * size + place, count));
                         });
      }
    }
  }
}

}  // namespace baleen::mesh
