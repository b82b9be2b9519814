#pragma once
// The page tables of a decode step as the host keeps them: full pages and window pages by slot, and
// the full pages again in the order of the step's rows. What changes is noted as few stretches to
// copy to the device. Bookkeeping alone: the memory belongs to the caller, who copies from it. Used
// on one thread.
//
//   DecodeTables tables({.full = a, .window = b, .rows = c}, blocks);
//   tables.change(slot, block, full, window);
//   tables.set_rows(slots);                       // slot of each row of the step
//   for (const auto& copy : tables.pending()) { ... }
//   tables.clear_pending();                       // when the copies are under way

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/strong_id.h"
#include "cache/pool.h"

namespace baleen::runner {

class DecodeTables {
 public:
  /// i32, row-major; every entry 0, the sink. The spans stay valid.
  struct Memory {
    std::span<int32_t> full;    // [slots, blocks]
    std::span<int32_t> window;  // [slots, blocks]
    std::span<int32_t> rows;    // [most rows, blocks]
  };
  enum class Table : uint8_t { kFull, kWindow, kRows };
  struct Copy {
    Table table = Table::kFull;
    int64_t begin = 0;  // elements
    int64_t count = 0;
    friend bool operator==(const Copy&, const Copy&) = default;
  };

  DecodeTables(const Memory& memory, int32_t blocks);

  void change(RequestSlot slot, int32_t block, cache::FullPage full, cache::SwaPage window);
  /// Row i of the step reads what slots[i] holds now. Rows that already did are not copied again.
  void set_rows(std::span<const RequestSlot> slots);

  std::span<const Copy> pending() const { return pending_; }
  void clear_pending() { pending_.clear(); }

 private:
  struct Slot {
    int32_t used = 0;      // blocks, the longest so far
    uint64_t version = 1;  // of its full pages
  };
  struct Row {
    RequestSlot slot;
    uint64_t version = 0;
  };

  void note(Table table, int64_t begin, int64_t count);

  Memory memory_;
  int64_t blocks_;
  std::vector<Slot> slots_;
  std::vector<Row> rows_;
  std::vector<Copy> pending_;
};

}  // namespace baleen::runner
