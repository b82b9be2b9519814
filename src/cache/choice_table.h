#pragma once
// Recorded choices of all tokens whose compressed entries the pools hold: one record per position
// of every full page, so that a record lives, is shared and is copied as the page is. A page takes
// memory with its first record. Owned by the executor beside the pools, used on its thread.
//
//   ChoiceTable table(layout, num_full_pages);
//   table.write(page, position, routes, picks);              // after the pass that ran the token
//   table.copy(block, source, target, num_tokens);           // with a resume copy
//   table.read(page, position, routes, picks);               // appends the record

#include <bitset>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_shape.h"
#include "cache/choice_layout.h"
#include "cache/pool.h"

namespace baleen::cache {

class ChoiceTable {
 public:
  ChoiceTable(ChoiceLayout layout, int64_t num_full_pages);

  /// Memory that the records of a full page take when it holds this block of a sequence.
  static int64_t page_bytes(const ChoiceLayout& layout, int32_t block);
  /// The largest of those over all blocks of a context of so many tokens.
  static int64_t most_page_bytes(const ChoiceLayout& layout, int64_t max_context);

  const ChoiceLayout& layout() const { return layout_; }
  int64_t bytes() const;

  /// The record of `position`, which lies in `page`; spans of the layout's sizes (checked). The
  /// first position of a page begins it anew.
  void write(FullPage page,
             int32_t position,
             std::span<const uint8_t> routes,
             std::span<const uint8_t> picks);
  /// Appends the record. One that was not written since the page began is a programmer error.
  void read(FullPage page,
            int32_t position,
            std::vector<uint8_t>& routes,
            std::vector<uint8_t>& picks) const;
  /// Makes `target` the first `num_tokens` records of `source`; both are pages of block `block`.
  void copy(int32_t block, FullPage source, FullPage target, int32_t num_tokens);

 private:
  struct Page {
    int32_t block = -1;  // of the sequence: positions [block * kPageTokens, ...)
    std::bitset<kPageTokens> written;
    std::vector<uint8_t> routes;
    std::vector<uint8_t> picks;
    std::vector<int32_t> pick_begin;  // per position of the page, and the end; empty without picks
  };

  void begin(Page& page, int32_t block) const;
  Page& at(FullPage page);
  std::span<uint8_t> routes_of(Page& page, int32_t position) const;
  std::span<uint8_t> picks_of(Page& page, int32_t position) const;

  ChoiceLayout layout_;
  std::vector<Page> pages_;  // by full page; the sink is among them
};

}  // namespace baleen::cache
