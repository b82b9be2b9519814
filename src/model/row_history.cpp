#include "model/row_history.h"

#include <algorithm>
#include <limits>

#include <ATen/ops/empty.h>

#include "base/check.h"

namespace baleen::model {

RowHistory::RowHistory(int64_t width,
                       int64_t keep_rows,
                       const at::TensorOptions& options,
                       bool paint)
    : width_(width), keep_rows_(keep_rows), paint_(paint) {
  BALEEN_CHECK(width > 0 && keep_rows >= kKeepAll, "width={} keep={}", width, keep_rows);
  buffer_ = at::empty({usual_capacity(), width}, options);
  this->paint(0, buffer_.size(0));
}

/// Twice the kept rows, so that moving them to the front happens once per keep_rows_ tokens; a
/// history that keeps everything starts small and doubles.
int64_t RowHistory::usual_capacity() const {
  return 2 * std::max<int64_t>(keep_rows_, 8);
}

std::unique_ptr<RowStore> RowHistory::clone() const {
  auto copy = std::make_unique<RowHistory>(*this);
  copy->buffer_ = buffer_.clone();
  return copy;
}

int64_t RowHistory::bytes() const {
  return static_cast<int64_t>(buffer_.nbytes());
}

void RowHistory::paint(int64_t first_row, int64_t count) {
  if (paint_) {
    buffer_.narrow(0, first_row, count).fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

void RowHistory::make_room(int64_t new_rows) {
  const int64_t capacity = buffer_.size(0);
  if (offset_ + num_rows_ + new_rows <= capacity) {
    return;
  }
  const bool keep_all = keep_rows_ == kKeepAll;
  const int64_t kept = keep_all ? num_rows_ : std::min(num_rows_, keep_rows_);
  const int64_t first_kept = offset_ + num_rows_ - kept;
  const at::Tensor rows = buffer_.narrow(0, first_kept, kept);
  // A long chunk needs a long buffer for one step; the next move goes back to the usual one.
  const int64_t least = keep_all ? 2 * capacity : usual_capacity();
  const int64_t wanted = std::max(least, kept + new_rows);
  const bool in_place = wanted == capacity && first_kept >= kept;
  if (!in_place) {
    buffer_ = at::empty({wanted, width_}, buffer_.options());
  }
  buffer_.narrow(0, 0, kept).copy_(rows);
  paint(kept, wanted - kept);
  begin_ += num_rows_ - kept;
  num_rows_ = kept;
  offset_ = 0;
}

void RowHistory::append(const at::Tensor& rows) {
  BALEEN_CHECK(rows.dim() == 2 && rows.size(1) == width_, "rows must be [n, {}]", width_);
  const int64_t count = rows.size(0);
  make_room(count);
  buffer_.narrow(0, offset_ + num_rows_, count).copy_(rows);
  num_rows_ += count;
}

at::Tensor RowHistory::view(int64_t first, int64_t last) const {
  BALEEN_CHECK(begin_ <= first && first <= last && last <= end(),
               "rows [{}, {}) of a history that holds [{}, {})",
               first,
               last,
               begin_,
               end());
  return buffer_.narrow(0, offset_ + first - begin_, last - first);
}

void RowHistory::truncate(int64_t position) {
  if (position >= end()) {
    return;
  }
  BALEEN_CHECK(position >= begin_, "position {} before the first row {}", position, begin_);
  const int64_t kept = position - begin_;
  paint(offset_ + kept, num_rows_ - kept);
  num_rows_ = kept;
}

void RowHistory::restart(int64_t position) {
  paint(0, buffer_.size(0));
  begin_ = position;
  offset_ = 0;
  num_rows_ = 0;
}

}  // namespace baleen::model
