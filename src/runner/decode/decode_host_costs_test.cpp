// What a step on kernels decides on the host costs no allocation and no lock once it has run
// before.

#include <cstdint>
#include <mutex>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/lock_counter.h"
#include "cache/allocation_counter.h"
#include "runner/decode/decode_tables.h"
#include "runner/decode/run_parts.h"

namespace baleen::runner {
namespace {

constexpr int32_t kCostSlots = 16;
constexpr int32_t kCostBlocks = 8;
constexpr RunLimits kCostLimits{.graph_tokens = 64, .row_tokens = 4, .pass_tokens = 512};

/// Steps of 16 sequences: decoding, verifying and prompts, over new pages now and then.
void run_costed_steps(DecodeTables& tables,
                      RunParts& parts,
                      std::vector<RunRow>& rows,
                      std::vector<RequestSlot>& slots,
                      int32_t count) {
  std::mt19937 random(3);
  int64_t tokens = 0;
  for (int32_t step = 0; step < count; ++step) {
    rows.clear();
    slots.clear();
    for (int32_t slot = 0; slot < kCostSlots; ++slot) {
      const auto draw = static_cast<int32_t>(random() % 8);
      const bool prompt = draw == 0;
      const int32_t row_tokens = prompt ? 300 : 1 + draw % 4;
      rows.push_back({.tokens = row_tokens, .first_result = prompt ? row_tokens - 1 : 0});
      for (int32_t token = 0; !prompt && token < row_tokens; ++token) {
        slots.push_back(RequestSlot(slot));
      }
      if (draw == 1) {
        const auto page = static_cast<int32_t>(1 + random() % 1000);
        tables.change(RequestSlot(slot),
                      static_cast<int32_t>(random() % kCostBlocks),
                      cache::FullPage(page),
                      cache::SwaPage(page));
      }
    }
    tables.set_rows(slots);
    tables.clear_pending();
    parts.split(rows);
    for (const RunPart& part : parts.parts()) {
      tokens += part.num_tokens;
    }
  }
  EXPECT_GT(tokens, count * kCostSlots);
}

TEST(DecodeHostCostsTest, AWarmStepAllocatesNothingAndTakesNoLock) {
  std::vector<int32_t> full(kCostSlots * kCostBlocks, 0);
  std::vector<int32_t> window(full.size(), 0);
  std::vector<int32_t> step(static_cast<std::size_t>(4 * kCostSlots * kCostBlocks), 0);
  DecodeTables tables({.full = full, .window = window, .rows = step}, kCostBlocks);
  RunParts parts(kCostLimits);
  std::vector<RunRow> rows;
  std::vector<RequestSlot> slots;
  run_costed_steps(tables, parts, rows, slots, 200);
  const int64_t allocations = cache::num_allocations_of_thread();
  const int64_t locks = num_locks_of_thread();
  EXPECT_GT(allocations, 0);  // it does count
  run_costed_steps(tables, parts, rows, slots, 200);
  EXPECT_EQ(cache::num_allocations_of_thread(), allocations);
  EXPECT_EQ(num_locks_of_thread(), locks);
  std::mutex mutex;
  mutex.lock();
  mutex.unlock();
  EXPECT_EQ(num_locks_of_thread(), locks + (locks_are_counted() ? 1 : 0));  // it does count
}

}  // namespace
}  // namespace baleen::runner
