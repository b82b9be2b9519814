#pragma once
// `post` of the sub-layer before, on four columns of one token: what a lane reads and the new
// streams it makes of it. Device functions; the width is a constant so that addresses are.
//
//   PostInput in;
//   load_post_input<4096>(params, token, column, in);   // several may be in flight
//   new_streams<4096>(params, token, column, in, coefficients, x);   // pairs of the four streams

#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/ptx/convert.cuh"

namespace baleen::kernels {

/// What one lane reads of one token and quantisation block: four columns of everything.
struct PostInput {
  uint2 part;
  uint2 residual[kHcStreams];
};

template <int kWidth>
__device__ __forceinline__ void load_post_input(const HcFusedParams& p,
                                                int64_t token,
                                                int64_t column,
                                                PostInput& in) {
  if (p.num_parts > 0) {
    in.part = *reinterpret_cast<const uint2*>(p.parts[0] + token * kWidth + column);
  }
  if (p.residual != nullptr) {
#pragma unroll
    for (int j = 0; j < kHcStreams; ++j) {
      in.residual[j] =
          *reinterpret_cast<const uint2*>(p.residual + (token * kHcStreams + j) * kWidth + column);
    }
  }
}

__device__ __forceinline__ void unpack(uint2 packed, float (&out)[4]) {
  out[0] = ptx::low_bf16(packed.x);
  out[1] = ptx::high_bf16(packed.x);
  out[2] = ptx::low_bf16(packed.y);
  out[3] = ptx::high_bf16(packed.y);
}

/// The packed new streams of four columns. coefficients: post and the rows of comb.
template <int kWidth>
__device__ __forceinline__ void new_streams(const HcFusedParams& p,
                                            int64_t token,
                                            int64_t column,
                                            const PostInput& in,
                                            const float4 (&coefficients)[1 + kHcStreams],
                                            uint2 (&x)[kHcStreams]) {
  uint2 s = in.part;
  if (p.num_parts > 1) {
    float sum[4];
    unpack(in.part, sum);
#pragma unroll 1
    for (int i = 1; i < p.num_parts; ++i) {
      float more[4];
      unpack(*reinterpret_cast<const uint2*>(p.parts[i] + token * kWidth + column), more);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        sum[c] = __fadd_rn(sum[c], more[c]);
      }
    }
    s = make_uint2(ptx::pack_bf16(sum[0], sum[1]), ptx::pack_bf16(sum[2], sum[3]));
  }
  if (p.residual == nullptr) {
    x[0] = x[1] = x[2] = x[3] = s;
    return;
  }
  if (p.post == nullptr) {
#pragma unroll
    for (int k = 0; k < kHcStreams; ++k) {
      x[k] = in.residual[k];
    }
    return;
  }
  float y[4];
  float r[kHcStreams][4];
  unpack(s, y);
#pragma unroll
  for (int j = 0; j < kHcStreams; ++j) {
    unpack(in.residual[j], r[j]);
  }
  const float4 first = coefficients[0];
  const float post[4] = {first.x, first.y, first.z, first.w};
  float4 comb[kHcStreams];
#pragma unroll
  for (int j = 0; j < kHcStreams; ++j) {
    comb[j] = coefficients[1 + j];
  }
#pragma unroll
  for (int k = 0; k < kHcStreams; ++k) {
    float sum[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sum[c] = __fmul_rn(post[k], y[c]);
    }
#pragma unroll
    for (int j = 0; j < kHcStreams; ++j) {
      const float weight = k == 0 ? comb[j].x : k == 1 ? comb[j].y : k == 2 ? comb[j].z : comb[j].w;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        sum[c] = __fmaf_rn(weight, r[j][c], sum[c]);
      }
    }
    x[k] = make_uint2(ptx::pack_bf16(sum[0], sum[1]), ptx::pack_bf16(sum[2], sum[3]));
  }
}

}  // namespace baleen::kernels
