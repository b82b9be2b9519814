#pragma once
// The routed experts of one token on the CPU: the decode step. Only the chosen experts' weights are
// read. No threads, no allocation; float and double.
//
//   kernels::experts_cpu<float>({.x = x, .w1 = w1, .w3 = w3, .w2 = w2, .experts = ids, .weights =
//   w,
//                                .y = y, .scratch = scratch, .slots = 2, .width = 256, .hidden =
//                                512});
//
// Slots are summed in ascending expert id (equal ids: lower slot first). Products in the order of
// lanes.h. Rounding points as in experts_oracle.h.

#include <cstdint>

namespace baleen::kernels {

template <class T>
struct ExpertsArgs {
  const T* x = nullptr;              // [width]; with `quantised` already e4m3 in blocks of 128
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
  double limit = 0.0;  // SwiGLU clamp; infinity for none
  bool weight_before_w2 = true;
  bool quantised = false;  // the hidden vector to e4m3 in blocks of 128
  bool rounded = false;    // gate, up, hidden vector and output of an expert to bf16
};

template <class T>
void experts_cpu(const ExpertsArgs<T>& args);

}  // namespace baleen::kernels
