#pragma once
// What step_metadata means, token by token on the host. Integers alone: results are bit-equal.
//
//   StepMetadataOracle want = step_metadata_oracle(inputs);

#include <cstdint>
#include <vector>

#include "kernels/step_metadata/step_metadata.h"

namespace baleen::kernels {

struct StepRequest {
  int32_t slot = 0;
  int32_t length = 0;
  int32_t count = 0;
  int32_t draft_begin = 0;
  int32_t draft_hole = -1;
};

struct StepMetadataOracle {
  std::vector<int32_t> token_requests, positions, causal_lengths, window_slots, c4_entries,
      c128_entries, window_rows;
  std::vector<CompressorPlanEntry> c4_plan, c128_plan;
  std::vector<RingWriteEntry> c4_writes, c128_writes;
  int32_t errors = 0;
};

/// `table` is [slots, blocks], and so is `window_table` where it is not empty: it then stands for
/// `window_pages`. Padding is not part of the result.
inline StepMetadataOracle step_metadata_oracle(const std::vector<StepRequest>& requests,
                                               const std::vector<int32_t>& table,
                                               int32_t blocks,
                                               const std::vector<int32_t>& window_pages,
                                               int32_t c4_ring,
                                               int32_t c128_ring,
                                               const std::vector<int32_t>& window_table = {}) {
  StepMetadataOracle out;
  int32_t row = 0;
  for (size_t r = 0; r < requests.size(); ++r) {
    const StepRequest& q = requests[r];
    if (q.slot < 0 || q.length < 0 || q.count < 0 ||
        int64_t{q.length} + q.count > int64_t{blocks} * kPageTokens) {
      ++out.errors;
      continue;
    }
    const auto page = [&](int32_t position) {
      return table[static_cast<size_t>(q.slot * blocks + position / kPageTokens)];
    };
    const auto window_page = [&](int32_t position) {
      return window_table.empty()
                 ? window_pages[static_cast<size_t>(page(position))]
                 : window_table[static_cast<size_t>(q.slot * blocks + position / kPageTokens)];
    };
    const int32_t end = q.length + q.count;
    for (int32_t p = q.length; p < end; ++p, ++row) {
      const int32_t n = p + 1;
      out.token_requests.push_back(static_cast<int32_t>(r));
      out.positions.push_back(p);
      out.causal_lengths.push_back(n);
      out.window_slots.push_back(window_page(p) > 0 ? window_page(p) * kPageTokens + p % kPageTokens
                                                    : 0);
      out.c4_entries.push_back(n / 4);
      out.c128_entries.push_back(n / 128);
      std::vector<int32_t> list(kWindowCapacity, -1);
      const int32_t oldest = n > kWindowTokens ? n - kWindowTokens : 0;
      for (int32_t seen = oldest; seen < n; ++seen) {
        const bool hidden = seen < q.draft_begin || seen == q.draft_hole;
        if (!hidden && window_page(seen) > 0) {
          list[static_cast<size_t>(seen - oldest / kWindowTile * kWindowTile)] =
              window_page(seen) * kPageTokens + seen % kPageTokens;
        }
      }
      out.window_rows.insert(out.window_rows.end(), list.begin(), list.end());
      for (const int32_t ratio : {4, 128}) {
        const bool is_c4 = ratio == 4;
        const int32_t ring = is_c4 ? c4_ring : c128_ring;
        const auto base = [&](int32_t position) {
          return (is_c4 ? window_page(position < 0 ? 0 : position) : q.slot) * ring;
        };
        if (n % ratio == 0) {
          const int32_t window = is_c4 ? 8 : 128;
          const int32_t here = p - q.length + 1;
          const int32_t per_page = kPageTokens / ratio;
          (is_c4 ? out.c4_plan : out.c128_plan)
              .push_back({row,
                          here < window ? here : window,
                          p,
                          page(p) * per_page + p / ratio % per_page,
                          base(is_c4 ? p - 4 : p),
                          base(p),
                          static_cast<int32_t>(r),
                          0});
        }
        // The carry rows at the end of every page, for requests that share it later.
        const bool page_end = is_c4 && p % kPageTokens >= kPageTokens - 4;
        if (p >= first_ring_write(end, ratio, ring) || page_end) {
          (is_c4 ? out.c4_writes : out.c128_writes).push_back({row, base(p) + p % ring, p, 0});
        }
      }
    }
  }
  return out;
}

}  // namespace baleen::kernels
