#pragma once
// Router arithmetic on the CPU: scores sqrt(softplus(z)) element by element, and the weights of the
// chosen experts, whose sum runs in ascending expert id (equal ids: lower slot first) whatever
// order the slots have. No threads, no allocation; float and double. Oracle: router_oracle.h.
//
//   kernels::router_scores_cpu(logits, scores, count);
//   kernels::route_weights_cpu<float>({.scores = scores, .experts = ids, .weights = w, .rows = n,
//                                      .num_experts = 256, .slots = 6, .scale = 1.5});

#include <cstdint>

namespace baleen::kernels {

/// logits, scores [count]; may be the same array.
template <class T>
void router_scores_cpu(const T* logits, T* scores, int64_t count);

template <class T>
struct RouteWeightsArgs {
  const T* scores = nullptr;         // [rows, num_experts]
  const int64_t* experts = nullptr;  // [rows, slots], each in [0, num_experts)
  T* weights = nullptr;              // [rows, slots], out
  int64_t rows = 0;
  int64_t num_experts = 0;
  int64_t slots = 0;
  double scale = 1.0;
  double eps = 0.0;  // added to the sum
};

template <class T>
void route_weights_cpu(const RouteWeightsArgs<T>& args);

}  // namespace baleen::kernels
