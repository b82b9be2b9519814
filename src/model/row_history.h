#pragma once
// Rows addressed by position, the latest of which stay readable: raw KV rows, compressor rows,
// compressed entries, carried streams of one sequence. Rows lie in one buffer in order of position,
// so any readable span is a view without a copy, and taking the last rows back is only a shorter
// end. Owned by a SequenceState; one thread at a time; never under autograd.
//
//   RowHistory raw(width, window - 1 + max_rollback, options, paint);
//   raw.append(rows);                        // positions end() .. end() + n
//   at::Tensor seen = raw.view(begin, end);  // [end - begin, width]

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "model/row_store.h"

namespace baleen::model {

class RowHistory final : public RowStore {
 public:
  static constexpr int64_t kKeepAll = -1;

  RowHistory() = default;
  /// `keep_rows`: rows before end() that stay readable, kKeepAll for every row. `paint` fills
  /// memory that holds no row with NaN, so that a stale read shows.
  RowHistory(int64_t width, int64_t keep_rows, const at::TensorOptions& options, bool paint);

  std::unique_ptr<RowStore> clone() const override;

  /// First position that can be read, and one past the last.
  int64_t begin() const override { return begin_; }
  int64_t end() const override { return begin_ + num_rows_; }
  int64_t width() const override { return width_; }
  at::TensorOptions options() const override { return buffer_.options(); }
  int64_t bytes() const override;

  /// Appends rows [n, width] as positions end() .. end() + n. Earlier views become invalid.
  void append(const at::Tensor& rows) override;

  /// Rows of positions [first, last), a view into the buffer; all of them must be readable.
  at::Tensor view(int64_t first, int64_t last) const override;

  /// Forgets positions from `position` on. No effect when there are none.
  void truncate(int64_t position) override;
  /// Forgets everything; the next row is that of `position`.
  void restart(int64_t position) override;

 private:
  int64_t usual_capacity() const;
  void make_room(int64_t new_rows);
  void paint(int64_t first_row, int64_t count);

  at::Tensor buffer_;  // [capacity, width]
  int64_t width_ = 0;
  int64_t keep_rows_ = 0;
  int64_t begin_ = 0;   // position of the first readable row
  int64_t offset_ = 0;  // buffer row of that position
  int64_t num_rows_ = 0;
  bool paint_ = false;
};

}  // namespace baleen::model
