#pragma once
// The hyper-connection between two sub-layers in one launch: `post` of the sub-layer before, the
// mixing product, `pre` of the next, its RMSNorm and the e4m3 quantisation of its linears.
//
//   kernels::hc_fused({.parts = {y}, .residual = x, .post = p, .comb = c, .streams = x, ...},
//   stream);
//
// Per token, with four streams of width H:
//   s    = bf16(sum of parts, ascending)                 the sub-layer's output, partial per rank
//   x_k  = bf16(post_k s + sum_j comb[j][k] residual_j)  new streams
//   m_i  = <fn_i, x> * (mean over 4H of x^2 + eps)^-1/2
//   pre_j  = sigmoid(m_j scale_0 + base_j) + hc_eps
//   post_j = 2 sigmoid(m_{4+j} scale_1 + base_{4+j})
//   comb   = sinkhorn(m_{8+i} scale_2 + base_{8+i})
//   u    = bf16(sum_j pre_j x_j)
//   y    = bf16(norm_weight * (u * (mean(u^2) + eps)^-1/2))
//   codes, scales = e4m3 and UE8M0 of y in blocks of 128
// Float32 in between; rounding points are the bf16() above. fn multiplies with FP32 FMA in slices
// of fixed order, so that a token's bits depend neither on num_tokens nor on its neighbours: this
// is the form of the invariant mode and the only one. Forms:
//   residual null               first layer: the four streams are copies of part 0
//   post null, residual given   the streams are given and not changed
//   rows = 4                    the head: only pre exists (fn [4, 4H], base [4], scale [1])
// Errors: shapes outside supports() are a programmer's error (checked). Sync: none; capture-safe;
// no workspace; zero tokens are legal. Outputs may lie exactly where inputs of their size do
// (`streams` and `residual`, post_out and post ...), but few tokens are quicker when they do not:
// two clusters share the work then. Oracle: hyper_connection_oracle.h.

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels {

inline constexpr int32_t kHcStreams = 4;
inline constexpr int32_t kHcRows = 24;     // 4 pre, 4 post, 16 comb
inline constexpr int32_t kHcHeadRows = 4;  // pre alone
inline constexpr int32_t kHcMaxParts = 8;  // ranks whose partial outputs are added
inline constexpr int32_t kHcQuantDims = 128;
inline constexpr int32_t kHcFewTokens = 16;  // beyond, outputs gain nothing by places of their own

struct HcFusedParams {
  const uint16_t* parts[kHcMaxParts] = {};  // bf16 [num_tokens, H] each, 16-byte aligned
  int32_t num_parts = 1;                    // 0 when streams are given
  const uint16_t* residual = nullptr;       // bf16 [num_tokens, 4, H] or null (first layer)
  const float* post = nullptr;              // f32 [num_tokens, 4] or null
  const float* comb = nullptr;              // f32 [num_tokens, 4, 4], null with post
  const float* fn = nullptr;                // f32 [rows, 4H], stream-major columns, 16-byte aligned
  const float* base = nullptr;              // f32 [rows], 16-byte aligned
  const float* scale = nullptr;             // f32 [3], or [1] with 4 rows
  const float* norm_weight = nullptr;       // f32 [H], 16-byte aligned
  uint16_t* streams = nullptr;              // bf16 [num_tokens, 4, H], out; null: not written
  float* post_out = nullptr;                // f32 [num_tokens, 4], out; with 24 rows
  float* comb_out = nullptr;                // f32 [num_tokens, 4, 4], out; with 24 rows
  uint16_t* collapsed = nullptr;            // bf16 [num_tokens, H], u, out; null: not written
  uint16_t* y = nullptr;                    // bf16 [num_tokens, H], out; null: not written
  uint8_t* codes = nullptr;                 // e4m3 [num_tokens, H], out; null: not written
  uint8_t* scales = nullptr;                // UE8M0 [num_tokens, H / 128], out; with codes
  int32_t num_tokens = 0;
  int32_t width = 0;  // H
  int32_t rows = kHcRows;
  float rms_norm_eps = 0.0F;
  float hc_eps = 0.0F;
  int32_t sinkhorn_iters = 0;
  bool programmatic = false;  // launch as a programmatic dependent: fn, base, scale and norm_weight
                              // are read before the predecessor has ended
};

/// Widths of the cluster kernel: 4096 and 7168.
bool hc_fused_sm90_supports(int32_t width);
/// Widths of the portable kernel: multiples of 128.
bool hc_fused_portable_supports(int32_t width);

void hc_fused_sm90(const HcFusedParams& params, device::StreamHandle stream);
void hc_fused_portable(const HcFusedParams& params, device::StreamHandle stream);
/// The cluster kernel where it supports the width, else the portable one.
void hc_fused(const HcFusedParams& params, device::StreamHandle stream);

/// Clusters of the cluster kernel that the device holds at once.
int32_t hc_fused_resident_clusters(int32_t width);

}  // namespace baleen::kernels
