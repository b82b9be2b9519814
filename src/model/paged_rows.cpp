#include "model/paged_rows.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "base/check.h"
#include "model/row_bytes.h"

namespace baleen::model {
namespace {

/// The chosen ones of rows `first` ...; an increasing list.
at::Tensor select_rows(const at::Tensor& rows, const std::vector<int64_t>& chosen, int64_t first) {
  if (static_cast<int64_t>(chosen.size()) == rows.size(0)) {
    return rows;
  }
  at::Tensor index = at::empty({static_cast<int64_t>(chosen.size())}, at::kLong);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    index.data_ptr<int64_t>()[i] = chosen[i] - first;
  }
  return rows.index_select(0, index.to(rows.device()));
}

}  // namespace

PagedRows::PagedRows(PagedRowsLayout layout, const at::TensorOptions& options)
    : layout_(std::move(layout)), options_(options) {
  const auto dtype = options.dtype().toScalarType();
  BALEEN_CHECK(dtype == at::kFloat || dtype == at::kDouble, "dtype {}", static_cast<int>(dtype));
  BALEEN_CHECK(options.device().is_cpu() || layout_.by_tensors, "host rows of a device's model");
}

at::Tensor PagedRows::read(int64_t first, int64_t last) const {
  if (!layout_.by_tensors) {
    return read_on_host(first, last);
  }
  std::vector<cache::RowPlace> places;
  places.reserve(static_cast<std::size_t>(last - first));
  for (int64_t row = first; row < last; ++row) {
    places.push_back(layout_.locate(row));
  }
  return read_rows(layout_.codec, places, options_);
}

void PagedRows::write(const at::Tensor& rows, int64_t first) {
  const int64_t pass_end = first + rows.size(0);
  std::vector<int64_t> kept;
  kept.reserve(static_cast<std::size_t>(rows.size(0)));
  for (int64_t row = first; row < pass_end; ++row) {
    if (layout_.keeps == nullptr || layout_.keeps(row, pass_end)) {
      kept.push_back(row);
    }
  }
  if (!layout_.by_tensors) {
    write_on_host(rows, kept, first);
    return;
  }
  std::vector<cache::RowPlace> places;
  places.reserve(kept.size());
  for (const int64_t row : kept) {
    places.push_back(layout_.locate(row));
  }
  write_rows(layout_.codec, select_rows(rows, kept, first), places);
}

at::Tensor PagedRows::read_on_host(int64_t first, int64_t last) const {
  at::Tensor rows = at::empty({last - first, width()}, options_);
  const auto width_elements = static_cast<std::size_t>(width());
  const auto read_all = [&](auto* target) {
    using Number = std::remove_pointer_t<decltype(target)>;
    for (int64_t row = first; row < last; ++row, target += width()) {
      layout_.codec.decode(layout_.locate(row), std::span<Number>(target, width_elements));
    }
  };
  if (rows.scalar_type() == at::kDouble) {
    read_all(rows.data_ptr<double>());
  } else {
    read_all(rows.data_ptr<float>());
  }
  return rows;
}

void PagedRows::write_on_host(const at::Tensor& rows,
                              std::span<const int64_t> kept,
                              int64_t first) {
  const at::Tensor source = rows.contiguous();
  const auto width_elements = static_cast<std::size_t>(width());
  const auto write_all = [&](const auto* number) {
    using Number = std::remove_const_t<std::remove_pointer_t<decltype(number)>>;
    for (const int64_t row : kept) {
      layout_.codec.encode(
          std::span<const Number>(number + (row - first) * width(), width_elements),
          layout_.locate(row));
    }
  };
  if (source.scalar_type() == at::kDouble) {
    write_all(source.const_data_ptr<double>());
  } else {
    write_all(source.const_data_ptr<float>());
  }
}

void PagedRows::append(const at::Tensor& rows) {
  BALEEN_CHECK(rows.dim() == 2 && rows.size(1) == width() &&
                   rows.scalar_type() == options_.dtype().toScalarType(),
               "rows must be [n, {}] of the compute type",
               width());
  if (is_ring()) {
    // Taken out before the pass's own rows may overwrite them.
    pass_begin_ = std::max(begin_, end_ - layout_.carry_rows);
    const at::Tensor carried = read(pass_begin_, end_);
    pass_rows_ = at::cat({carried, rows}, 0);
  }
  write(rows, end_);
  end_ += rows.size(0);
}

at::Tensor PagedRows::view(int64_t first, int64_t last) const {
  const int64_t readable = is_ring() ? pass_begin_ : begin_;
  BALEEN_CHECK(readable <= first && first <= last && last <= end_,
               "rows [{}, {}) of a store that holds [{}, {})",
               first,
               last,
               readable,
               end_);
  return is_ring() ? pass_rows_.narrow(0, first - pass_begin_, last - first) : read(first, last);
}

void PagedRows::truncate(int64_t position) {
  if (position >= end_) {
    return;
  }
  BALEEN_CHECK(position >= begin_, "position {} before the first row {}", position, begin_);
  if (layout_.paint_truncated) {
    write(at::full({end_ - position, width()}, std::numeric_limits<double>::quiet_NaN(), options_),
          position);
  }
  end_ = position;
  pass_rows_.reset();
  pass_begin_ = end_;
}

void PagedRows::restart(int64_t position) {
  begin_ = 0;
  end_ = position;
  pass_rows_.reset();
  pass_begin_ = position;
}

std::unique_ptr<RowStore> PagedRows::clone() const {
  BALEEN_CHECK(false, "rows in shared pages cannot be cloned");
  return nullptr;
}

}  // namespace baleen::model
