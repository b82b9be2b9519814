#pragma once
// Public kernels of others as shared libraries, measured beside ours. They are built apart from
// this project, none of their code is in it; a folder of them is named on the command line. A
// library that is missing, or lacks a function, skips the rows that would need it, by name.
//
//   PeerLibraries peers("peers");                              // loads peers/*.so, by name
//   for (const PeerLinear& peer : peers.linears()) { peer.launch(call, stream); }
//
// C interface of such a library:
//   const char* baleen_peer_name();            // "name-commit"
//   int baleen_peer_fp8_linear(const PeerLinearCall*, cudaStream_t);   // 0: launched, 1: not this
//                                                                      // shape, else a failure
//   int64_t baleen_peer_sparse_attention_workspace(const PeerAttentionCall*);        // bytes
//   int baleen_peer_sparse_attention(const PeerAttentionCall*, cudaStream_t);        // as above
//   int64_t baleen_peer_index_scores_workspace(const PeerScoresCall*);               // bytes
//   int baleen_peer_index_scores(const PeerScoresCall*, cudaStream_t);               // as above
//   int64_t baleen_peer_pool_workspace(const PeerPoolCall*);                         // bytes
//   int baleen_peer_pool(const PeerPoolCall*, cudaStream_t);                         // as above
//   int64_t baleen_peer_topk_workspace(const PeerTopkCall*);                         // bytes
//   int baleen_peer_topk(const PeerTopkCall*, cudaStream_t);                         // as above

#include <cstdint>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

namespace baleen::kernels::benching {

/// y = x W^T with scales per 128 x 128 of W and per 128 inputs of x. Plain C layout.
struct PeerLinearCall {
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

struct PeerPool {
  std::string name;
  int64_t (*workspace)(const PeerPoolCall*) = nullptr;
  int (*launch)(const PeerPoolCall*, cudaStream_t) = nullptr;
};

struct PeerTopk {
  std::string name;
  int64_t (*workspace)(const PeerTopkCall*) = nullptr;
  int (*launch)(const PeerTopkCall*, cudaStream_t) = nullptr;
};

struct PeerScores {
  std::string name;
  int64_t (*workspace)(const PeerScoresCall*) = nullptr;
  int (*launch)(const PeerScoresCall*, cudaStream_t) = nullptr;
};

struct PeerAttention {
  std::string name;
  int64_t (*workspace)(const PeerAttentionCall*) = nullptr;
  int (*launch)(const PeerAttentionCall*, cudaStream_t) = nullptr;
};

struct PeerLinear {
  std::string name;
  int (*launch)(const PeerLinearCall*, cudaStream_t) = nullptr;
};

class PeerLibraries {
 public:
  /// Loads every *.so of `folder`; an empty name loads none. Libraries stay loaded until the
  /// program ends: their kernels may still be in graphs. Throws ConfigError for a library that
  /// cannot be loaded or has no name.
  explicit PeerLibraries(const std::string& folder);
  const std::vector<PeerLinear>& linears() const { return linears_; }
  const std::vector<PeerAttention>& attentions() const { return attentions_; }
  const std::vector<PeerScores>& scores() const { return scores_; }
  const std::vector<PeerTopk>& topks() const { return topks_; }
  const std::vector<PeerPool>& pools() const { return pools_; }

 private:
  std::vector<PeerAttention> attentions_;
  std::vector<PeerLinear> linears_;
  std::vector<PeerScores> scores_;
  std::vector<PeerTopk> topks_;
  std::vector<PeerPool> pools_;
};

}  // namespace baleen::kernels::benching
