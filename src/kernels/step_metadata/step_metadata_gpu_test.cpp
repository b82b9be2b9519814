#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/step_metadata/step_metadata.h"
#include "kernels/step_metadata/step_metadata_oracle.h"
#include "kernels/testing/gpu_test.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels {
namespace {

using StepMetadataGpu = testing::GpuTest;
using StepMetadataGpuSmall = testing::GpuTest;

/// Captured arrays of one graph: sized by maxima, painted once, launched many times.
class StepCase {
 public:
  StepCase(int requests, int tokens, int blocks, int c4_ring, int c128_ring, uint64_t seed)
      : max_requests(requests),
        max_tokens(tokens),
        table_blocks(blocks),
        ring4(c4_ring),
        ring128(c128_ring) {
    testing::RandomValues random(seed);
    const int slots = requests + 3;
    table.resize(static_cast<size_t>(slots * blocks));
    std::iota(table.begin(), table.end(), 1);
    for (size_t i = table.size(); i > 1; --i) {
      std::swap(table[i - 1],
                table[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
    }
    window_pages.resize(table.size() + 1);
    for (size_t i = 1; i < window_pages.size(); ++i) {  // some window pages are gone
      window_pages[i] =
          random.integer(0, 7) == 0 ? 0 : static_cast<int32_t>(window_pages.size() - i);
    }
    table_ = device::Buffer<int32_t>::from_host(table);
    window_pages_ = device::Buffer<int32_t>::from_host(window_pages);
    for (auto* buffer : {&requests_, &positions_, &lengths_, &slots_, &c4_, &c128_}) {
      *buffer = device::Buffer<int32_t>(tokens);
      buffer->fill_bytes(0x77);
    }
    rows_ = device::Buffer<int32_t>(int64_t{tokens} * kWindowCapacity);
    rows_.fill_bytes(0x77);
    max_c4 = tokens / 4 + requests;
    max_c128 = tokens / 128 + requests;
    plan4_ = device::Buffer<CompressorPlanEntry>(max_c4);
    plan128_ = device::Buffer<CompressorPlanEntry>(max_c128);
    write4_ = device::Buffer<RingWriteEntry>(tokens);
    write128_ = device::Buffer<RingWriteEntry>(tokens);
    plan4_.fill_bytes(0x77);
    plan128_.fill_bytes(0x77);
    write4_.fill_bytes(0x77);
    write128_.fill_bytes(0x77);
    numbers_ = device::Buffer<int32_t>(4);
    counters_ = device::Buffer<int32_t>(5);
    errors_ = device::Buffer<uint32_t>(1);
    errors_.fill_bytes(0);
  }

  void run(const std::vector<StepRequest>& real, int uniform, cudaStream_t stream) {
    std::vector<int32_t> slot, length, count, begin, hole;
    for (int r = 0; r < max_requests; ++r) {  // stale numbers past the real ones
      const bool exists = r < static_cast<int>(real.size());
      const StepRequest q =
          exists ? real[static_cast<size_t>(r)] : StepRequest{1 << 30, -77, 1 << 30};
      slot.push_back(q.slot);
      length.push_back(q.length);
      count.push_back(q.count);
      begin.push_back(q.draft_begin);
      hole.push_back(q.draft_hole);
    }
    auto d_slot = device::Buffer<int32_t>::from_host(slot);
    auto d_length = device::Buffer<int32_t>::from_host(length);
    auto d_count = device::Buffer<int32_t>::from_host(count);
    auto d_begin = device::Buffer<int32_t>::from_host(begin);
    auto d_hole = device::Buffer<int32_t>::from_host(hole);
    auto d_real =
        device::Buffer<int32_t>::from_host(std::vector<int32_t>{static_cast<int32_t>(real.size())});
    counters_.fill_bytes(0x77);
    StepMetadataParams p;
    p.slots = d_slot.data();
    p.lengths = d_length.data();
    p.token_counts = uniform > 0 ? nullptr : d_count.data();
    p.chain_len = uniform > 0 ? uniform : 1;
    p.max_requests = max_requests;
    p.num_requests = d_real.data();
    p.max_tokens = max_tokens;
    p.page_table = table_.data();
    p.table_blocks = table_blocks;
    p.window_pages = window_table.empty() ? window_pages_.data() : nullptr;
    p.window_table = window_table.empty() ? nullptr : window_table_.data();
    p.draft_begin = d_begin.data();
    p.draft_hole = d_hole.data();
    p.token_requests = requests_.data();
    p.positions = positions_.data();
    p.causal_lengths = lengths_.data();
    p.window_slots = slots_.data();
    p.c4_entries = c4_.data();
    p.c128_entries = c128_.data();
    p.window_rows = rows_.data();
    p.c4 = {plan4_.data(),
            max_c4,
            numbers_.data(),
            write4_.data(),
            max_tokens,
            numbers_.data() + 1,
            ring4};
    p.c128 = {plan128_.data(),
              max_c128,
              numbers_.data() + 2,
              write128_.data(),
              max_tokens,
              numbers_.data() + 3,
              ring128};
    p.counters = counters_.data();
    p.num_counters = 5;
    p.errors = errors_.data();
    step_metadata(p, stream);
    BALEEN_CUDA_CHECK(cudaStreamSynchronize(stream));
  }

  void expect(const std::vector<StepRequest>& real, const char* what) const {
    const StepMetadataOracle want =
        step_metadata_oracle(real, table, table_blocks, window_pages, ring4, ring128, window_table);
    const auto tokens = static_cast<size_t>(max_tokens);
    const auto padded = [](std::vector<int32_t> values, size_t count, int32_t padding) {
      values.resize(count, padding);
      return values;
    };
    EXPECT_EQ(requests_.to_host(), padded(want.token_requests, tokens, -1)) << what;
    EXPECT_EQ(positions_.to_host(), padded(want.positions, tokens, 0)) << what;
    EXPECT_EQ(lengths_.to_host(), padded(want.causal_lengths, tokens, 0)) << what;
    EXPECT_EQ(slots_.to_host(), padded(want.window_slots, tokens, 0)) << what;
    EXPECT_EQ(c4_.to_host(), padded(want.c4_entries, tokens, 0)) << what;
    EXPECT_EQ(c128_.to_host(), padded(want.c128_entries, tokens, 0)) << what;
    EXPECT_EQ(rows_.to_host() == padded(want.window_rows, tokens * kWindowCapacity, -1), true)
        << what;
    expect_records(plan4_.to_host(), want.c4_plan, what);
    expect_records(plan128_.to_host(), want.c128_plan, what);
    expect_records(write4_.to_host(), want.c4_writes, what);
    expect_records(write128_.to_host(), want.c128_writes, what);
    const std::vector<int32_t> numbers = {static_cast<int32_t>(want.c4_plan.size()),
                                          static_cast<int32_t>(want.c4_writes.size()),
                                          static_cast<int32_t>(want.c128_plan.size()),
                                          static_cast<int32_t>(want.c128_writes.size())};
    EXPECT_EQ(numbers_.to_host(), numbers) << what;
    EXPECT_EQ(counters_.to_host(), std::vector<int32_t>(5, 0)) << what;
  }
  /// All slots get the full pages of slot 0 and window pages of their own; every fifth is gone.
  void share_full_pages() {
    window_table.clear();
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = table[i % static_cast<size_t>(table_blocks)];
      window_table.push_back(i % 5 == 4 ? 0 : static_cast<int32_t>(3 * i + 1));
    }
    table_ = device::Buffer<int32_t>::from_host(table);
    window_table_ = device::Buffer<int32_t>::from_host(window_table);
  }
  uint32_t errors() const { return errors_.to_host()[0]; }

  int max_requests;
  int max_tokens;
  int table_blocks;
  int ring4;
  int ring128;
  int max_c4 = 0;
  int max_c128 = 0;
  std::vector<int32_t> table;
  std::vector<int32_t> window_pages;
  std::vector<int32_t> window_table;  // empty: window_pages holds

 private:
  template <class Record>
  static void expect_records(const std::vector<Record>& got,
                             std::vector<Record> want,
                             const char* what) {
    ASSERT_LE(want.size(), got.size()) << what;
    want.resize(got.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(Record)), 0)
          << what << " record " << i << " of " << sizeof(Record) << " bytes";
    }
  }

  device::Buffer<int32_t> table_, window_pages_, window_table_, requests_, positions_, lengths_,
      slots_, c4_, c128_, rows_, numbers_, counters_;
  device::Buffer<CompressorPlanEntry> plan4_, plan128_;
  device::Buffer<RingWriteEntry> write4_, write128_;
  device::Buffer<uint32_t> errors_;
};

TEST_F(StepMetadataGpuSmall, EdgesOfGroupsPagesAndWindows) {
  // Lengths after the first token: below and at 4, 128, 256 and one more; the window's first page.
  StepCase c(24, 96, 9, 16, 136, 3);
  std::vector<StepRequest> requests;
  for (const int length : {0,   1,   2,   3,   4,   6,   62,  63,  64,  123, 124, 126,
                           127, 128, 129, 188, 191, 192, 252, 253, 255, 256, 257, 2044}) {
    requests.push_back(
        {.slot = static_cast<int32_t>(requests.size()), .length = length, .count = 4});
  }
  c.run(requests, 4, stream());
  c.expect(requests, "verify");
  for (StepRequest& q : requests) {
    q.count = 1;
  }
  c.run(requests, 1, stream());
  c.expect(requests, "decode");
  EXPECT_EQ(c.errors(), 0U);
}

TEST_F(StepMetadataGpu, RandomStepsEqualTheHost) {
  testing::RandomValues random(7);
  StepCase c(64, 256, 4096, 16, 256, 5);  // up to 1,048,576 positions
  for (int round = 0; round < 30; ++round) {
    std::vector<StepRequest> requests;
    const int real = round == 0 ? 0 : round == 1 ? 64 : static_cast<int>(random.integer(0, 64));
    for (int r = 0; r < real; ++r) {
      const int64_t most = round % 3 == 0 ? 1'048'572 : round % 3 == 1 ? 4096 : 300;
      StepRequest q{.slot = static_cast<int32_t>(r * 7 % 67),
                    .length = static_cast<int32_t>(random.integer(0, most)),
                    .count = 4};
      q.draft_begin = random.integer(0, 3) == 0 ? q.length - 20 : 0;
      q.draft_hole = random.integer(0, 3) == 0 ? q.length - 1 : -1;
      requests.push_back(q);
    }
    c.run(requests, 4, stream());
    c.expect(requests, "random");
  }
  EXPECT_EQ(c.errors(), 0U);
}

TEST_F(StepMetadataGpu, RaggedPrefillEqualsTheHost) {
  testing::RandomValues random(9);
  for (const auto& [ring4, ring128] : std::vector<std::pair<int, int>>{{8, 128}, {16, 136}}) {
    StepCase c(1024, 9000, 40, ring4, ring128, 11);
    for (int round = 0; round < 6; ++round) {
      std::vector<StepRequest> requests;
      int left = 9000;
      const int real = round == 0 ? 1 : round == 1 ? 1024 : static_cast<int>(random.integer(1, 40));
      for (int r = 0; r < real; ++r) {
        const int64_t most = round == 1 ? 8 : std::min(left, 4000);
        const auto count = static_cast<int32_t>(round == 0 ? 9000 : random.integer(0, most));
        left -= count;
        requests.push_back({.slot = static_cast<int32_t>(r),
                            .length = static_cast<int32_t>(random.integer(0, 1000)),
                            .count = count});
      }
      c.run(requests, 0, stream());
      c.expect(requests, "ragged");
    }
    EXPECT_EQ(c.errors(), 0U);
  }
}

TEST_F(StepMetadataGpuSmall, SequencesThatShareFullPagesHaveWindowPagesOfTheirOwn) {
  StepCase c(12, 48, 9, 16, 136, 19);
  c.share_full_pages();
  std::vector<StepRequest> requests;
  for (const int length : {0, 3, 127, 128, 255, 256, 257, 300, 511, 512, 640, 2044}) {
    requests.push_back(
        {.slot = static_cast<int32_t>(requests.size()), .length = length, .count = 4});
  }
  c.run(requests, 4, stream());
  c.expect(requests, "shared");
  EXPECT_EQ(c.errors(), 0U);
}

TEST_F(StepMetadataGpuSmall, NothingStaleAfterASmallerBatch) {
  StepCase c(8, 32, 4, 8, 128, 13);
  std::vector<StepRequest> requests;
  for (int r = 0; r < 8; ++r) {
    requests.push_back({.slot = r, .length = 120 + r, .count = 4});
  }
  for (const size_t real : {8, 1, 0, 5, 8}) {
    const std::vector<StepRequest> some(requests.begin(),
                                        requests.begin() + static_cast<std::ptrdiff_t>(real));
    c.run(some, 4, stream());
    c.expect(some, "batch");
  }
}

TEST_F(StepMetadataGpuSmall, WrongRequestsBecomePaddingAndAreCounted) {
  StepCase c(8, 32, 4, 8, 128, 17);
  const std::vector<StepRequest> requests = {{.slot = 0, .length = 10, .count = 4},
                                             {.slot = 1, .length = -3, .count = 4},
                                             {.slot = -1, .length = 7, .count = 4},
                                             {.slot = 2, .length = 1022, .count = 4},
                                             {.slot = 3, .length = 1020, .count = 4},
                                             {.slot = 4, .length = 0, .count = 4}};
  c.run(requests, 4, stream());
  c.expect(requests, "wrong");
  EXPECT_EQ(c.errors(), 3U);
}

}  // namespace
}  // namespace baleen::kernels
