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

void ZeroRanges::reduce_gradients() {
  sum_over_pipeline_ends(tensors_, mesh_);
  for (Row& row : rows_) {
    at::Tensor all = at::zeros({row.stretch * row.group->size()}, row.gradient.options());
    int64_t begin = 0;
    for (const std::size_t i : row.tensors) {
      const int64_t count = tensors_[i].value.numel();
      all.narrow(0, begin, count).copy_(tensors_[i].gradient.reshape({-1}));
      begin += count;
    }
    row.gradient.copy_(reduce_scatter_rows(all, *row.group));
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
    const RankTensor& like = tensors_[row.tensors[0]];
    at::Tensor own = at::zeros({row.stretch}, like.value.options());
    const int64_t first = row.group->rank() * row.stretch;
    const auto for_each_overlap = [&](int64_t from, int64_t count, const auto& visit) {
      int64_t begin = 0;
      for (const std::size_t i : row.tensors) {
        const int64_t numel = tensors_[i].value.numel();
        const int64_t first_common = std::max(from, begin);
        const int64_t end_common = std::min(from + count, begin + numel);
        if (first_common < end_common) {
          visit(tensors_[i].value.view({-1}).narrow(
                    0, first_common - begin, end_common - first_common),
                first_common - from);
        }
        begin += numel;
      }
    };
    for_each_overlap(first, row.stretch, [&](at::Tensor part, int64_t offset) {
      own.narrow(0, offset, part.size(0)).copy_(part);
    });
    const at::Tensor all = all_gather_rows(own, *row.group);
    for_each_overlap(0, all.size(0), [&](at::Tensor part, int64_t offset) {
      part.copy_(all.narrow(0, offset, part.size(0)));
    });
  }
}

}  // namespace baleen::mesh
