#pragma once
// Hyper-connections on the CPU, fused per token: for steps of few tokens, where the time of
// separate tensor operations would be all overhead. No threads of its own, no allocation; float and
// double.
//
//   kernels::hc_pre_cpu<float>({.streams = x, .fn = fn, ..., .tokens = 1, .num_streams = 4, .width
//   = 256});
//
// Sums over 4H and over the weights' rows run in the order of lanes.h, sums over streams in
// ascending order. Rounding: y, h and out to bf16 when `rounded`. Oracle:
// hyper_connection_oracle.h.

#include <cstdint>

namespace baleen::kernels {

inline constexpr int64_t kHcMaxStreams = 16;

template <class T>
struct HcMixArgs {
  const T* streams = nullptr;  // [tokens, n, H]
  const T* fn = nullptr;       // [(2 + n) n, n H]; for hc_head [n, n H]
  const T* base = nullptr;     // [(2 + n) n]; for hc_head [n]
  const T* scale = nullptr;    // [3]; for hc_head [1]
  T* y = nullptr;              // [tokens, H], out
  T* post = nullptr;           // [tokens, n], out; hc_pre only
  T* comb = nullptr;           // [tokens, n, n], out; hc_pre only
  int64_t tokens = 0;
  int64_t num_streams = 0;  // n, at most kHcMaxStreams
  int64_t width = 0;        // H
  double rms_norm_eps = 0.0;
  double hc_eps = 0.0;
  int64_t sinkhorn_iters = 0;
  bool rounded = false;
};

template <class T>
struct HcPostArgs {
  const T* y = nullptr;        // [tokens, H]
  const T* streams = nullptr;  // [tokens, n, H]
  const T* post = nullptr;     // [tokens, n]
  const T* comb = nullptr;     // [tokens, n, n]
  T* out = nullptr;            // [tokens, n, H], not the same array as streams
  int64_t tokens = 0;
  int64_t num_streams = 0;
  int64_t width = 0;
  bool rounded = false;
};

template <class T>
void hc_pre_cpu(const HcMixArgs<T>& args);
template <class T>
void hc_head_cpu(const HcMixArgs<T>& args);
template <class T>
void hc_post_cpu(const HcPostArgs<T>& args);

}  // namespace baleen::kernels
