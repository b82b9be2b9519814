#pragma once
// Clamped SwiGLU experts on the CPU: one expert on a few rows, and the routed experts of one token
// (the decode step), which reads the chosen experts' weights only. No threads, no allocation; float
// and double.
//
//   kernels::experts_cpu<float>({.x = x, .w1 = w1, .w3 = w3, .w2 = w2, .experts = ids, .weights =
//   w,
//                                .y = y, .scratch = scratch, .slots = 2, .width = 256, .hidden =
//                                512});
//
// Products in the order of lanes.h, slots in that of slot_order.h: a token's bits depend neither on
// its neighbours nor on which of the two forms ran. Rounding points as in experts_oracle.h.

#include <cstdint>

namespace baleen::kernels {

struct ExpertOptions {
  double limit = 0.0;  // SwiGLU clamp; infinity for none
  bool weight_before_w2 = true;
  bool quantised = false;  // the hidden vector to e4m3 in blocks of 128
  bool rounded = false;    // gate, up, hidden vector and output of an expert to bf16
};

/// One expert. With `quantised` the rows come already in e4m3 blocks of 128.
template <class T>
struct ExpertRowsArgs {
  const T* x = nullptr;        // [rows, width]
  const T* w1 = nullptr;       // gate [hidden, width]
  const T* w3 = nullptr;       // up   [hidden, width]
  const T* w2 = nullptr;       // down [width, hidden]
  const T* weights = nullptr;  // [rows], of the routes; null for all ones
  T* y = nullptr;              // [rows, width], out: with its weight, not summed
  T* scratch = nullptr;        // [2 * rows * hidden]
  int64_t rows = 0;
  int64_t width = 0;
  int64_t hidden = 0;
  ExpertOptions options = {};
};

template <class T>
void expert_rows_cpu(const ExpertRowsArgs<T>& args);

/// The routed experts of one token.
template <class T>
struct ExpertsArgs {
  const T* x = nullptr;              // [width]
  const T* w1 = nullptr;             // gate [num_experts, hidden, width]
  const T* w3 = nullptr;             // up   [num_experts, hidden, width]
  const T* w2 = nullptr;             // down [num_experts, width, hidden]
  const int64_t* experts = nullptr;  // [slots], each in [0, num_experts)
  const T* weights = nullptr;        // [slots]
  T* y = nullptr;                    // [width], out, not rounded
  T* scratch = nullptr;              // [2 * hidden + width]
  int64_t slots = 0;
  int64_t width = 0;
  int64_t hidden = 0;
  int64_t num_experts = 0;
  ExpertOptions options = {};
};

template <class T>
void experts_cpu(const ExpertsArgs<T>& args);

/// y = sum of the parts of one token in the order of slot_order.h, from zero: what experts_cpu
/// gives when part s is expert experts[s]'s output. parts: [slots] pointers to [width].
template <class T>
void sum_slots_cpu(const T* const* parts,
                   const int64_t* experts,
                   int64_t slots,
                   int64_t num_experts,
                   int64_t width,
                   T* y);

}  // namespace baleen::kernels
