// The host's page tables of a decode step: what they hold, and that the stretches they name carry a
// copy to the same contents whatever changes.

#include "runner/decode/decode_tables.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace baleen::runner {
namespace {

using Table = DecodeTables::Table;

/// Tables with a "device" that is changed by the noted copies alone.
struct Mirror {
  Mirror(int32_t slots, int32_t rows, int32_t blocks)
      : full(static_cast<std::size_t>(slots * blocks), 0),
        window(full.size(), 0),
        step(static_cast<std::size_t>(rows * blocks), 0),
        device_full(full),
        device_window(window),
        device_step(step),
        tables({.full = full, .window = window, .rows = step}, blocks) {}

  void copy() {
    for (const DecodeTables::Copy& copy : tables.pending()) {
      const auto [from, to] = copy.table == Table::kFull     ? std::pair(&full, &device_full)
                              : copy.table == Table::kWindow ? std::pair(&window, &device_window)
                                                             : std::pair(&step, &device_step);
      copied += copy.count;
      std::copy_n(from->begin() + copy.begin, copy.count, to->begin() + copy.begin);
    }
    tables.clear_pending();
  }
  void change(int32_t slot, int32_t block, int32_t page, int32_t window_page) {
    tables.change(RequestSlot(slot), block, cache::FullPage(page), cache::SwaPage(window_page));
  }

  std::vector<int32_t> full, window, step, device_full, device_window, device_step;
  int64_t copied = 0;
  DecodeTables tables;
};

TEST(DecodeTablesTest, APromptIsOneCopyPerTable) {
  Mirror m(3, 2, 8);
  for (int32_t block = 0; block < 5; ++block) {
    m.change(1, block, 10 + block, 20 + block);
  }
  EXPECT_EQ(m.tables.pending().size(), 2U);
  EXPECT_EQ(m.tables.pending()[0], (DecodeTables::Copy{Table::kFull, 8, 5}));
  EXPECT_EQ(m.tables.pending()[1], (DecodeTables::Copy{Table::kWindow, 8, 5}));
  const std::vector<RequestSlot> slots = {RequestSlot(1)};
  m.tables.set_rows(slots);
  EXPECT_EQ(m.tables.pending()[2], (DecodeTables::Copy{Table::kRows, 0, 5}));
  m.copy();
  EXPECT_EQ(m.device_full, m.full);
  EXPECT_EQ(m.device_window, m.window);
  EXPECT_EQ(std::vector<int32_t>(m.device_step.begin(), m.device_step.begin() + 5),
            (std::vector<int32_t>{10, 11, 12, 13, 14}));
}

TEST(DecodeTablesTest, ASteadyStepCopiesNothing) {
  Mirror m(3, 2, 8);
  m.change(2, 0, 5, 6);
  const std::vector<RequestSlot> slots = {RequestSlot(2), RequestSlot(0)};
  m.tables.set_rows(slots);
  m.copy();
  m.tables.set_rows(slots);
  EXPECT_TRUE(m.tables.pending().empty());
  m.change(2, 0, 5, 6);  // the same again
  m.tables.set_rows(slots);
  EXPECT_TRUE(m.tables.pending().empty());
  m.change(2, 0, 5, 0);  // a window page was given up: no row of full pages changes
  m.tables.set_rows(slots);
  ASSERT_EQ(m.tables.pending().size(), 1U);
  EXPECT_EQ(m.tables.pending()[0], (DecodeTables::Copy{Table::kWindow, 16, 1}));
}

TEST(DecodeTablesTest, CopiesCarryEveryChangeOver) {
  constexpr int32_t kSlots = 7;
  constexpr int32_t kRows = 4;
  constexpr int32_t kBlocks = 12;
  std::mt19937 random(3);
  const auto below = [&random](int32_t most) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(most));
  };
  Mirror m(kSlots, kRows, kBlocks);
  std::vector<int32_t> used(kSlots, 0);  // what a row held behind them for another slot may stay
  int64_t all = 0;
  for (int32_t step = 0; step < 2000; ++step) {
    for (int32_t i = below(4); i > 0; --i) {
      const int32_t slot = below(kSlots);
      const int32_t block = below(kBlocks);
      m.change(slot, block, 1 + below(50), below(40));
      used[static_cast<std::size_t>(slot)] =
          std::max(used[static_cast<std::size_t>(slot)], block + 1);
    }
    std::vector<RequestSlot> slots;
    for (int32_t r = 0; r < 1 + step % kRows; ++r) {
      slots.emplace_back((r * 2 + step / 9) % kSlots);
    }
    m.tables.set_rows(slots);
    m.copy();
    all += 2 * kSlots * kBlocks + kRows * kBlocks;
    ASSERT_EQ(m.device_full, m.full) << step;
    ASSERT_EQ(m.device_window, m.window) << step;
    for (std::size_t r = 0; r < slots.size(); ++r) {
      const int32_t last = used[static_cast<std::size_t>(slots[r].value())];
      for (int32_t block = 0; block < last; ++block) {
        ASSERT_EQ(m.device_step[r * kBlocks + static_cast<std::size_t>(block)],
                  m.full[static_cast<std::size_t>(slots[r].value() * kBlocks + block)])
            << "step " << step << " row " << r << " block " << block;
      }
    }
  }
  EXPECT_LT(m.copied, all / 4);
}

TEST(DecodeTablesDeathTest, RefusesABlockBehindTheTable) {
  Mirror m(2, 2, 4);
  EXPECT_DEATH(m.change(0, 4, 1, 1), "block=4 blocks=4");
}

}  // namespace
}  // namespace baleen::runner
