#include <algorithm>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/ptx/pdl.cuh"
#include "kernels/step_metadata/step_metadata.h"

namespace baleen::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr uint32_t kWholeMask = 0xFFFFFFFFU;
constexpr int kPageEndTokens = 4;  // carry rows that every page keeps

/// What is counted per request: tokens, then entries and ring writes of both ratios.
enum Quantity { kTokens, kC4Entries, kC4Writes, kC128Entries, kC128Writes, kQuantities };

struct Request {
  int32_t slot;
  int32_t length;
  int32_t count;  // 0 in padding
};

struct StepArena {
  int32_t slot[kMostStepRequests];
  int32_t length[kMostStepRequests];
  int32_t begin[kQuantities][kMostStepRequests + 1];  // exclusive prefix sums
  int32_t warp_sums[kQuantities][kWarps];
  uint32_t refused;
};

/// Positions below `position` among the last four of their page.
__device__ __forceinline__ int32_t page_end_before(int32_t position) {
  const int32_t rest = position % kPageTokens - (kPageTokens - kPageEndTokens);
  return position / kPageTokens * kPageEndTokens + max(rest, 0);
}
__device__ __forceinline__ int32_t page_end_position(int32_t number) {
  return number / kPageEndTokens * kPageTokens + kPageTokens - kPageEndTokens +
         number % kPageEndTokens;
}

__device__ __forceinline__ int32_t ring_writes(const Request& q, int32_t ratio, int32_t ring_size) {
  if (q.count == 0) {
    return 0;
  }
  const int32_t end = q.length + q.count;
  const int32_t first = max(first_ring_write(end, ratio, ring_size), q.length);
  const int32_t pages = ratio == 4 ? page_end_before(first) - page_end_before(q.length) : 0;
  return end - first + pages;
}

__device__ __forceinline__ Request load_request(const StepMetadataParams& p, int r) {
  Request q = {p.slots[r], p.lengths[r], p.chain_len};
  if (p.token_counts != nullptr) {
    q.count = p.token_counts[r];
  }
  const bool wrong =
      q.slot < 0 || q.length < 0 || q.count < 0 ||
      static_cast<int64_t>(q.length) + q.count > static_cast<int64_t>(p.table_blocks) * kPageTokens;
  return wrong ? Request{-1, 0, 0} : q;
}

/// Every block sums over all requests; they are few. Blocks that write tokens need the first
/// quantity alone. kPerThread: neighbouring requests of a thread.
template <int kPerThread, int kNeeded>
__device__ __forceinline__ void sum_requests(StepArena& arena, const StepMetadataParams& p) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  Request requests[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int r = thread * kPerThread + i;
    requests[i] = r < p.max_requests ? load_request(p, r) : Request{0, 0, 0};
  }
  const int real = p.num_requests == nullptr ? p.max_requests : *p.num_requests;
  if (thread == 0) {
    arena.refused = 0;
  }
  int32_t own[kPerThread][kNeeded];
  int32_t sums[kNeeded] = {};
  int32_t refused = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int r = thread * kPerThread + i;
    const Request q = r < real ? requests[i] : Request{0, 0, 0};
    if (r < p.max_requests) {
      refused += q.slot < 0 ? 1 : 0;
      arena.slot[r] = q.slot;
      arena.length[r] = q.length;
    }
    const int32_t end = q.length + q.count;
    own[i][kTokens] = q.count;
    if constexpr (kNeeded == kQuantities) {
      own[i][kC4Entries] = end / 4 - q.length / 4;
      own[i][kC128Entries] = end / 128 - q.length / 128;
      own[i][kC4Writes] = ring_writes(q, 4, p.c4.ring_size);
      own[i][kC128Writes] = ring_writes(q, 128, p.c128.ring_size);
    }
#pragma unroll
    for (int k = 0; k < kNeeded; ++k) {
      sums[k] += own[i][k];
    }
  }
  int32_t before[kNeeded];
#pragma unroll
  for (int k = 0; k < kNeeded; ++k) {
    int32_t up_to = sums[k];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t other = __shfl_up_sync(kWholeMask, up_to, distance);
      up_to += lane >= distance ? other : 0;
    }
    before[k] = up_to - sums[k];
    if (lane == 31) {
      arena.warp_sums[k][warp] = up_to;
    }
  }
  __syncthreads();
  if (refused > 0) {
    atomicAdd(&arena.refused, static_cast<uint32_t>(refused));
  }
#pragma unroll
  for (int k = 0; k < kNeeded; ++k) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      before[k] += w < warp ? arena.warp_sums[k][w] : 0;
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int r = thread * kPerThread + i;
      if (r <= p.max_requests) {
        arena.begin[k][r] = before[k];
      }
      before[k] += own[i][k];
    }
    if (thread == kThreads - 1 && p.max_requests == kThreads * kPerThread) {
      arena.begin[k][kThreads * kPerThread] = before[k];
    }
  }
  __syncthreads();
}

/// The request that holds item `item` of a quantity; items below the total alone.
__device__ __forceinline__ int find_request(const int32_t* begin, int count, int32_t item) {
  int low = 0;
  int high = count;  // begin[low] <= item < begin[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (begin[middle] <= item) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

struct PageLookup {
  const StepMetadataParams& p;
  int64_t first;  // entry of the request's slot
  __device__ PageLookup(const StepMetadataParams& params, int32_t slot)
      : p(params), first(static_cast<int64_t>(slot) * params.table_blocks) {}
  __device__ int32_t page(int32_t position) const {
    return p.page_table[first + position / kPageTokens];
  }
  __device__ int32_t window_page(int32_t position) const {
    return p.window_table != nullptr ? p.window_table[first + position / kPageTokens]
                                     : p.window_pages[page(position)];
  }
  /// Row of the window pool, or -1 when the page is gone.
  __device__ int32_t window_row(int32_t position) const {
    const int32_t at = window_page(position);
    return at > 0 ? at * kPageTokens + position % kPageTokens : -1;
  }
};

__device__ void write_tokens(const StepArena& arena,
                             const StepMetadataParams& p,
                             int block,
                             int tokens_per_block) {
  const int32_t total = arena.begin[kTokens][p.max_requests];
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = 0; i < tokens_per_block; ++i) {
    const int32_t t = block * tokens_per_block + i;
    if (t >= p.max_tokens) {
      return;
    }
    const bool real = t < total;
    const int r = real ? find_request(arena.begin[kTokens], p.max_requests, t) : -1;
    const int32_t position = real ? arena.length[r] + t - arena.begin[kTokens][r] : 0;
    const int32_t length = real ? position + 1 : 0;
    const PageLookup pages(p, real ? arena.slot[r] : 0);
    if (p.window_rows != nullptr && thread < kWindowCapacity) {
      const int32_t oldest = max(length - kWindowTokens, 0);
      const int32_t seen = oldest / kWindowTile * kWindowTile + thread;
      int32_t row = -1;
      if (seen >= oldest && seen < length) {
        const bool hidden = (p.draft_begin != nullptr && seen < p.draft_begin[r]) ||
                            (p.draft_hole != nullptr && seen == p.draft_hole[r]);
        row = hidden ? -1 : pages.window_row(seen);
      }
      p.window_rows[static_cast<int64_t>(t) * kWindowCapacity + thread] = row;
    }
    if (thread == kWindowCapacity) {  // another warp than the list's
      const auto write = [t](int32_t* out, int32_t value) {
        if (out != nullptr) {
          out[t] = value;
        }
      };
      write(p.token_requests, r);
      write(p.positions, position);
      write(p.causal_lengths, length);
      write(p.c4_entries, length / 4);
      write(p.c128_entries, length / 128);
      if (p.window_slots != nullptr) {
        p.window_slots[t] = real ? max(pages.window_row(position), 0) : 0;
      }
    }
  }
}

/// One thread per place of a plan or of a list of writes, padding included.
__device__ void write_plan(const StepArena& arena,
                           const StepMetadataParams& p,
                           const CompressionOutputs& out,
                           int32_t ratio,
                           int32_t place) {
  const bool is_c4 = ratio == 4;
  const int32_t* begin = arena.begin[is_c4 ? kC4Entries : kC128Entries];
  CompressorPlanEntry record = {};
  if (place < begin[p.max_requests]) {
    const int r = find_request(begin, p.max_requests, place);
    const int32_t length = arena.length[r];
    const int32_t entry = length / ratio + place - begin[r];
    const int32_t end = entry * ratio + ratio - 1;
    const int32_t here = end - length + 1;
    const int32_t per_page = kPageTokens / ratio;
    const PageLookup pages(p, arena.slot[r]);
    record.end_row = arena.begin[kTokens][r] + end - length;
    record.rows_from_pass = min(here, is_c4 ? 8 : 128);
    record.end_position = end;
    record.destination = pages.page(end) * per_page + entry % per_page;
    const int32_t carry = max(end - 4, 0);
    record.carry_ring_base = (is_c4 ? pages.window_page(carry) : arena.slot[r]) * out.ring_size;
    record.own_ring_base = (is_c4 ? pages.window_page(end) : arena.slot[r]) * out.ring_size;
    record.request = r;
  }
  out.plan[place] = record;
}

__device__ void write_ring_writes(const StepArena& arena,
                                  const StepMetadataParams& p,
                                  const CompressionOutputs& out,
                                  int32_t ratio,
                                  int32_t place) {
  const bool is_c4 = ratio == 4;
  const int32_t* begin = arena.begin[is_c4 ? kC4Writes : kC128Writes];
  RingWriteEntry record = {};
  if (place < begin[p.max_requests]) {
    const int r = find_request(begin, p.max_requests, place);
    const int32_t length = arena.length[r];
    const int32_t end = length + arena.begin[kTokens][r + 1] - arena.begin[kTokens][r];
    const int32_t first = max(first_ring_write(end, ratio, out.ring_size), length);
    const int32_t earlier = page_end_before(length);
    const int32_t ends = is_c4 ? page_end_before(first) - earlier : 0;  // of pages before `first`
    const int32_t number = place - begin[r];
    const int32_t position =
        number < ends ? page_end_position(earlier + number) : first + number - ends;
    const PageLookup pages(p, arena.slot[r]);
    record.row = arena.begin[kTokens][r] + position - length;
    record.ring_row = (is_c4 ? pages.window_page(position) : arena.slot[r]) * out.ring_size +
                      position % out.ring_size;
    record.position = position;
  }
  out.writes[place] = record;
}

/// Decode and verify: one token per block, for latency. Prefill: fewer sums over the requests.
constexpr int tokens_per_block(const StepMetadataParams& p) {
  return p.max_tokens > 1024 ? 16 : 1;
}
constexpr int most_places(const StepMetadataParams& p) {
  return std::max({p.c4.max_entries, p.c4.max_writes, p.c128.max_entries, p.c128.max_writes, 1});
}

__global__ void __launch_bounds__(kThreads)
    step_metadata_kernel(const __grid_constant__ StepMetadataParams p,
                         int num_token_blocks,
                         int block_tokens) {
  __shared__ StepArena arena;
  ptx::wait_for_predecessor();
  const auto block = static_cast<int>(blockIdx.x);
  const bool few = p.max_requests <= kThreads;
  constexpr int kMany = kMostStepRequests / kThreads;
  if (block < num_token_blocks) {
    few ? sum_requests<1, 1>(arena, p) : sum_requests<kMany, 1>(arena, p);
    write_tokens(arena, p, block, block_tokens);
    return;
  }
  few ? sum_requests<1, kQuantities>(arena, p) : sum_requests<kMany, kQuantities>(arena, p);
  const int first = (block - num_token_blocks) * kThreads;
  const int place = first + static_cast<int>(threadIdx.x);
  if (place < p.c4.max_entries) {
    write_plan(arena, p, p.c4, 4, place);
  }
  if (place < p.c128.max_entries) {
    write_plan(arena, p, p.c128, 128, place);
  }
  if (place < p.c4.max_writes) {
    write_ring_writes(arena, p, p.c4, 4, place);
  }
  if (place < p.c128.max_writes) {
    write_ring_writes(arena, p, p.c128, 128, place);
  }
  if (first != 0) {
    return;
  }
  for (int i = place; i < p.num_counters; i += kThreads) {
    p.counters[i] = 0;
  }
  if (threadIdx.x == 0) {
    uint32_t errors = arena.refused;
    const auto publish = [&](int32_t* out, int32_t most, Quantity quantity) {
      const int32_t number = arena.begin[quantity][p.max_requests];
      if (out != nullptr) {
        errors += number > most ? 1 : 0;
        *out = min(number, most);
      }
    };
    publish(p.c4.num_entries, p.c4.max_entries, kC4Entries);
    publish(p.c4.num_writes, p.c4.max_writes, kC4Writes);
    publish(p.c128.num_entries, p.c128.max_entries, kC128Entries);
    publish(p.c128.num_writes, p.c128.max_writes, kC128Writes);
    errors += arena.begin[kTokens][p.max_requests] > p.max_tokens ? 1 : 0;
    if (p.errors != nullptr && errors > 0) {
      atomicAdd(p.errors, errors);
    }
  }
}

void check_outputs(const CompressionOutputs& out) {
  BALEEN_CHECK(out.max_entries >= 0 && out.max_writes >= 0 && out.ring_size >= 0,
               "max_entries={} max_writes={} ring_size={}",
               out.max_entries,
               out.max_writes,
               out.ring_size);
  BALEEN_CHECK((out.plan != nullptr) == (out.max_entries > 0) &&
                   (out.writes != nullptr) == (out.max_writes > 0),
               "max_entries={} max_writes={}",
               out.max_entries,
               out.max_writes);
}

}  // namespace

void step_metadata(const StepMetadataParams& params, device::StreamHandle stream) {
  StepMetadataParams p = params;
  BALEEN_CHECK(p.max_requests >= 0 && p.max_requests <= kMostStepRequests && p.max_tokens >= 0 &&
                   p.chain_len >= 0 && p.table_blocks >= 0,
               "max_requests={} max_tokens={} chain_len={} table_blocks={}",
               p.max_requests,
               p.max_tokens,
               p.chain_len,
               p.table_blocks);
  check_outputs(p.c4);
  check_outputs(p.c128);
  BALEEN_CHECK(p.max_requests == 0 ||
               (p.slots != nullptr && p.lengths != nullptr && p.page_table != nullptr &&
                (p.window_pages != nullptr || p.window_table != nullptr)));
  p.c4.ring_size = std::max(p.c4.ring_size, 8);  // unused without outputs, but divided by
  p.c128.ring_size = std::max(p.c128.ring_size, 128);
  const int block_tokens = tokens_per_block(p);
  const int tokens = (p.max_tokens + block_tokens - 1) / block_tokens;
  const int plans = (most_places(p) + kThreads - 1) / kThreads;
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(tokens + plans)), .block = dim3(kThreads)},
                 step_metadata_kernel,
                 p,
                 tokens,
                 block_tokens);
}

}  // namespace baleen::kernels
