#pragma once
// Rows addressed by position, as a sequence's layers write and read them. One interface for the two
// places rows can live in: a buffer of the sequence's own (RowHistory) and the pages of a shared
// cache (PagedRows). Owned by a SequenceState; one thread at a time; never under autograd.
//
//   store.append(rows);                        // positions end() .. end() + n
//   at::Tensor seen = store.view(begin, end);  // [end - begin, width], in their stored form

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace baleen::model {

class RowStore {
 public:
  virtual ~RowStore() = default;

  /// First position that can be read, and one past the last.
  virtual int64_t begin() const = 0;
  virtual int64_t end() const = 0;
  virtual int64_t width() const = 0;
  /// Dtype and device of the rows.
  virtual at::TensorOptions options() const = 0;
  /// Memory of the sequence's own; rows in shared pages do not count.
  virtual int64_t bytes() const = 0;

  /// Appends rows [n, width] as positions end() .. end() + n. Earlier views become invalid.
  virtual void append(const at::Tensor& rows) = 0;
  /// Rows of positions [first, last); all of them must be readable.
  virtual at::Tensor view(int64_t first, int64_t last) const = 0;
  /// Forgets positions from `position` on. No effect when there are none.
  virtual void truncate(int64_t position) = 0;
  /// The next row is that of `position`. What a store of its own held is forgotten; pages keep it.
  virtual void restart(int64_t position) = 0;
  virtual std::unique_ptr<RowStore> clone() const = 0;
};

}  // namespace baleen::model
