#pragma once
// Public kernels of others as shared libraries, measured beside ours. They are built apart from
// this project, none of their code is in it; a folder of them is named on the command line. A
// library that is missing, or lacks a function, skips the rows that would need it, by name.
//
//   PeerLibraries peers("peers");                              // loads peers/*.so, by name
//   for (const Peer<PeerLinearCall>& peer : peers.of<PeerLinearCall>()) {
//     peer.launch(&call, stream);
//   }
//
// C interface of such a library, NAME being the kFunction of a call below:
//   const char* baleen_peer_name();                    // "name-commit"
//   int NAME(const Call*, cudaStream_t);               // 0: launched, 1: not this shape, else a
//                                                      // failure
//   int64_t NAME_workspace(const Call*);               // bytes; of calls that have a workspace

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <cuda_runtime_api.h>

namespace baleen::kernels::benching {

/// y = x W^T with scales per 128 x 128 of W and per 128 inputs of x. Plain C layout.
struct PeerLinearCall {
  static constexpr const char* kFunction = "baleen_peer_fp8_linear";
  const void* weight = nullptr;          // e4m3 [outputs, inputs]
  const float* weight_scales = nullptr;  // [outputs / 128, inputs / 128]
  const void* x = nullptr;               // e4m3 [tokens, inputs]
  const float* x_scales = nullptr;       // [inputs / 128, tokens rounded up to four]
  void* y = nullptr;                     // bf16 [tokens, outputs]
  int32_t tokens = 0;
  int32_t outputs = 0;
  int32_t inputs = 0;
};

/// Attention of one query token per request over one or two lists of cached rows (our page layout),
/// with sink. Plain C layout.
struct PeerAttentionCall {
  static constexpr const char* kFunction = "baleen_peer_sparse_attention";
  const void* q = nullptr;               // bf16 [queries, heads, 512]
  const void* first_pool = nullptr;      // pages of rows_per_page rows, page_bytes apart
  const void* second_pool = nullptr;     // the same
  const int32_t* first_rows = nullptr;   // [queries, first_capacity], -1: none
  const int32_t* second_rows = nullptr;  // [queries, second_capacity]
  const float* sink = nullptr;           // [heads]
  void* o = nullptr;                     // bf16 [queries, heads, 512]
  float* lse = nullptr;                  // f32 [queries, heads]
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  int64_t page_bytes = 0;
  int32_t rows_per_page = 0;
  int32_t pages = 0;            // of either pool
  int32_t first_capacity = 0;   // multiples of 64
  int32_t second_capacity = 0;  // 0: no second list
  int32_t queries = 0;
  int32_t heads = 0;
  float scale = 0;
  int32_t plan_only = 0;  // 1: only what a step plans once, into the workspace
};

/// Index scores of all requests over paged keys (our page layout). Plain C layout.
struct PeerScoresCall {
  static constexpr const char* kFunction = "baleen_peer_index_scores";
  const void* queries = nullptr;        // e4m3 [requests, queries, 64 heads, 128]
  const float* head_weights = nullptr;  // [requests, queries, 64]
  const void* key_pages = nullptr;      // pages of 64 keys, then their scales, page_bytes apart
  const int32_t* page_table = nullptr;  // [requests, page_table_stride]
  const int32_t* lengths = nullptr;     // [requests, queries], keys seen
  float* scores = nullptr;              // [requests, queries, score_stride]
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  int64_t num_pages = 0;
  int64_t page_bytes = 0;
  int64_t page_table_stride = 0;
  int64_t score_stride = 0;
  int32_t num_requests = 0;
  int32_t queries_per_request = 0;
  int32_t plan_only = 0;  // 1: only what a step plans once, into the workspace
};

/// The k best entries of every row, in any order. Plain C layout.
struct PeerTopkCall {
  static constexpr const char* kFunction = "baleen_peer_topk";
  const float* scores = nullptr;     // [rows, score_stride], 16-byte aligned
  const int32_t* lengths = nullptr;  // [rows]
  int32_t* indices = nullptr;        // [rows, k], out
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  int64_t score_stride = 0;
  int64_t max_entries = 0;
  int32_t num_rows = 0;
  int32_t k = 0;
  int32_t plan_only = 0;  // 1: only what a step plans once, into the workspace
};

/// Pools the groups of one request's prefill pass, all rows in the pass: no norm, no rotation, no
/// store. Plain C layout.
struct PeerPoolCall {
  static constexpr const char* kFunction = "baleen_peer_pool";
  const float* rows = nullptr;           // [tokens, values then scores]: halves as in our rows
  const float* position_bias = nullptr;  // [ratio, values of a row], to be added to scores
  void* pooled = nullptr;                // bf16 [tokens / ratio, dims], out
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  int32_t tokens = 0;
  int32_t ratio = 0;
  int32_t dims = 0;
  int32_t plan_only = 0;  // 1: only what a step plans once, into the workspace
};

template <class Call>
concept HasWorkspace = requires(Call call) { call.workspace_bytes; };

/// A library's kernel for one kind of call.
template <class Call>
struct Peer {
  std::string name;
  int (*launch)(const Call*, cudaStream_t) = nullptr;
  int64_t (*workspace)(const Call*) = nullptr;  // null where the call has none

  /// Plans what a step plans once, then launches. 0, or the answer of the first that was refused.
  int launch_planned(Call call, cudaStream_t stream) const
    requires HasWorkspace<Call>
  {
    call.plan_only = 1;
    const int refused = launch(&call, stream);
    call.plan_only = 0;
    return refused != 0 ? refused : launch(&call, stream);
  }
};

class PeerLibraries {
 public:
  /// Loads every *.so of `folder`; an empty name loads none. Libraries stay loaded until the
  /// program ends: their kernels may still be in graphs. Throws ConfigError for a library that
  /// cannot be loaded or has no name.
  explicit PeerLibraries(const std::string& folder);
  /// In the order of the files' names.
  template <class Call>
  const std::vector<Peer<Call>>& of() const {
    return std::get<std::vector<Peer<Call>>>(peers_);
  }

 private:
  std::tuple<std::vector<Peer<PeerLinearCall>>,
             std::vector<Peer<PeerAttentionCall>>,
             std::vector<Peer<PeerScoresCall>>,
             std::vector<Peer<PeerTopkCall>>,
             std::vector<Peer<PeerPoolCall>>>
      peers_;
};

}  // namespace baleen::kernels::benching
