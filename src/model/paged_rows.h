#pragma once
// Rows of a sequence that live in the pages of a shared cache, in the cache's formats. What a pass
// appends is written to its page and read back from there, so that every reader sees the stored
// form. Compressor rows live in short rings: a pass reads its own rows and a few before them, and
// leaves in the ring only what later passes need, after it has taken out what it still reads
// itself.
//
//   PagedRows entries({.codec = codec, .locate = [=](int64_t entry) { return pools.c4(...); }},
//   options); entries.restart(prefix_entries);   // the pages hold these already

#include <cstdint>
#include <functional>
#include <span>

#include "cache/entry_codec.h"
#include "model/row_store.h"

namespace baleen::model {

struct PagedRowsLayout {
  cache::EntryCodec codec;
  /// Where the row of a position (or entry number) lies; must be a leased page.
  std::function<cache::RowPlace(int64_t row)> locate;
  /// Rings only: whether a pass that ends at `end` must leave row `row` behind. Null: every row.
  std::function<bool(int64_t row, int64_t end)> keeps = nullptr;
  /// Rings only: how many rows before a pass the pass may read. 0: rows are read from their pages.
  int64_t carry_rows = 0;
  bool paint_truncated = false;  // NaN over rows that were taken back
  /// Rows are written and read by tensor operations, as they must be in a device's memory; else
  /// number by number, which is faster on the host.
  bool by_tensors = false;
};

class PagedRows final : public RowStore {
 public:
  /// `options`: dtype of what view() gives, float or double, and the device of the pools' memory.
  PagedRows(PagedRowsLayout layout, const at::TensorOptions& options);

  int64_t begin() const override { return begin_; }
  int64_t end() const override { return end_; }
  int64_t width() const override { return layout_.codec.width(); }
  at::TensorOptions options() const override { return options_; }
  int64_t bytes() const override { return 0; }

  void append(const at::Tensor& rows) override;
  at::Tensor view(int64_t first, int64_t last) const override;
  void truncate(int64_t position) override;
  void restart(int64_t position) override;
  /// Pages have one writer: a programmer's error.
  std::unique_ptr<RowStore> clone() const override;

 private:
  bool is_ring() const { return layout_.carry_rows > 0; }
  at::Tensor read(int64_t first, int64_t last) const;
  void write(const at::Tensor& rows, int64_t first);
  at::Tensor read_on_host(int64_t first, int64_t last) const;
  void write_on_host(const at::Tensor& rows, std::span<const int64_t> kept, int64_t first);

  PagedRowsLayout layout_;
  at::TensorOptions options_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  // Rings: rows [pass_begin_, end_) of the last pass with the carried ones before them.
  at::Tensor pass_rows_;
  int64_t pass_begin_ = 0;
};

}  // namespace baleen::model
