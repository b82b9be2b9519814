#pragma once
// Attention of decode and verify: every query token reads its own rows from up to two paged FP8
// pools (window rows, then compressed entries); all heads share the rows and a row is key and value
// at once. Called by the thread that owns the stream; the caller owns all memory.
//
//   const SparseAttentionPlan plan = plan_sparse_attention(shape, AttentionMode::kFast, sm_count);
//   ... workspace of sparse_attention_workspace_bytes(shape, plan), zeroed once ...
//   launch_sparse_attention({.q = q, .first = window, .second = entries, .o = o, ...}, stream);
//
// Rows are visited in slot order in tiles of 64 slots, the first source before the second, each
// source starting a tile of its own; the softmax is taken online over tiles.

#include <cstddef>
#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/cache_entry/cache_entry_layout.h"

namespace baleen::kernels {

inline constexpr int32_t kAttentionTileRows = 64;
inline constexpr int32_t kAttentionPartRows = 2048;  // entries of a part in invariant mode

/// Rows of one pool, per query. Either a list or a dense run over pages; both null: absent.
struct SparseAttentionSource {
  KvPoolView pool = {};
  const int32_t* rows = nullptr;   // list: i32 [num_queries, stride], global rows; -1 is no row
  const int32_t* pages = nullptr;  // dense: i32 [num_queries, stride]; entry e is global row
                                   // pages[e / entries_per_page] * entries_per_page
                                   // + e % entries_per_page; a page of -1 has no rows
  const int32_t* lengths =
      nullptr;                   // i32 [num_queries], slots or entries in use, each <= capacity;
                                 // <= 0 is none. Null: `capacity` for every query
  int64_t stride = 0;            // elements from query to query in `rows` or `pages`
  int32_t capacity = 0;          // most slots or entries of a query
  int32_t entries_per_page = 1;  // dense: a power of two
};

enum class AttentionMode : uint8_t {
  kFast,      // rows of a query are cut over blocks by what fills the chip
  kInvariant  // a query's bits depend on its own rows alone: no cut of the first source and of
              // lists, dense sources cut every kAttentionPartRows entries
};

/// How the work of one query is cut. Fixed by captured maxima; lengths are read on the device.
struct SparseAttentionPlan {
  AttentionMode mode = AttentionMode::kFast;
  int32_t heads_per_block = 0;  // 8, 16, 32 or 64
  int32_t cluster = 1;          // blocks that exchange partial outputs through shared memory: 1..8,
                                // with 64 heads per block at most 2; but see `few`
  int32_t clusters = 1;         // clusters per query and head group, joined through the workspace
  int32_t max_queries = 0;  // num_queries of the shape planned for; fixes the workspace's layout
  bool few = false;  // the form for few queries (attention_few.h): fast mode, at most 48 slots of a
                     // query per block, 8 or 16 heads per block, a cluster of 4, 8 or 16
  friend bool operator==(const SparseAttentionPlan&, const SparseAttentionPlan&) = default;
};

/// What the plan may depend on.
struct SparseAttentionShape {
  int32_t num_queries = 0;
  int32_t heads = 0;
  int32_t first_capacity = 0;
  int32_t second_capacity = 0;
  bool second_is_dense = false;
};

/// o = sum_s p_s row_s with p_s = exp(z_s) / (sum exp(z) + exp(sink)), z_s = scale * <q, row_s>.
/// The weights exp(z_s - running maximum) round to bf16 before they meet the rows; their sum does
/// not. Partial outputs of a cut query are FP32, with `few` f16 (2^-11 relative, unit 2^-39 of the
/// largest of a head's block of 64 dims). No rows: o = 0, lse = -inf. A sink of +inf gives 0, of
/// -inf or a null sink none. Values: e4m3 * 2^(scale byte - 127), rounded to bf16 where that is
/// inexact; the codes 0x7F and 0xFF (never written) read as +-480. Dims of q * row are summed by
/// the tensor cores in groups of 16: dims 16 j + 4 t + i of a block of 64 nope dims (j, i = 0..3)
/// form group t; rope dims 8 j + 4 t + i of a half of 32 form group t. Errors: shapes outside
/// supports_sparse_attention() are a programmer error (checked). Sync: none; capture-safe. Oracle:
/// sparse_attention_oracle.h.
struct SparseAttentionParams {
  const uint16_t* q =
      nullptr;  // bf16 [num_queries, heads, 512], normed and rotated, 16-byte aligned
  SparseAttentionSource first = {};
  SparseAttentionSource second = {};
  const float* sink = nullptr;     // f32 [heads] or null
  uint16_t* o = nullptr;           // bf16 [num_queries, heads, 512], out, 16-byte aligned
  float* lse = nullptr;            // f32 [num_queries, heads], out or null: log sum exp(z)
  float* lse_with_sink = nullptr;  // the same with the sink
  const int32_t* positions =
      nullptr;  // i32 [num_queries] or null: o is turned back by its position
  const float* frequencies = nullptr;  // f32 [32], radians per position; needed with `positions`
  void* workspace = nullptr;           // 16-byte aligned, of one plan at a time; zeroed before the
                                       // first launch, which leaves its counters zero again
  float scale = 0.04419417382415922F;  // 512^-1/2
  int32_t num_queries = 0;             // 0 is legal
  int32_t heads = 0;                   // 8, 16, 32, 64 or 128
  bool programmatic = false;           // may start while its predecessor in the stream still runs
  SparseAttentionPlan plan = {};
};

bool supports_sparse_attention(const SparseAttentionShape& shape);

SparseAttentionPlan plan_sparse_attention(const SparseAttentionShape& shape,
                                          AttentionMode mode,
                                          int32_t num_multiprocessors);

/// Bytes for any launch of `plan`; 0 when nothing is joined through the workspace.
std::size_t sparse_attention_workspace_bytes(const SparseAttentionShape& shape,
                                             const SparseAttentionPlan& plan);

void launch_sparse_attention(const SparseAttentionParams& params, device::StreamHandle stream);

/// Correct on any GPU, one block per query and head; same results up to rounding. No workspace.
void launch_sparse_attention_portable(const SparseAttentionParams& params,
                                      device::StreamHandle stream);

}  // namespace baleen::kernels
