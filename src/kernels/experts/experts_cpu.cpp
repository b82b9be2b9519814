#include "kernels/experts/experts_cpu.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/linear/linear_cpu.h"
#include "kernels/slot_order.h"
#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"

namespace baleen::kernels {
namespace {

constexpr int64_t kActivationBlock = 128;  // inputs that share a scale

template <class T>
T stored(T value, const ExpertOptions& options) {
  return options.rounded ? numerics::round_to_bf16(value) : value;
}

/// gate = the hidden vector of one row from its gate and up products.
template <class T>
void hidden_row(T* gate, const T* up, int64_t hidden, T weight, const ExpertOptions& options) {
  const T limit = static_cast<T>(options.limit);
  for (int64_t i = 0; i < hidden; ++i) {
    const T g = std::min(stored(gate[i], options), limit);
    const T u = std::clamp(stored(up[i], options), -limit, limit);
    const T a = g / (T(1) + std::exp(-g)) * u;
    gate[i] = stored(options.weight_before_w2 ? weight * a : a, options);
  }
  if (options.quantised) {
    numerics::simulate_s8(std::span<T>(gate, static_cast<std::size_t>(hidden)), kActivationBlock);
  }
}

template <class T>
void add_row(const T* from, T* to, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    to[i] += from[i];
  }
}

}  // namespace

template <class T>
void expert_rows_cpu(const ExpertRowsArgs<T>& args) {
  T* gate = args.scratch;
  T* up = gate + args.rows * args.hidden;
  const auto multiply = [&](const T* x, const T* weight, T* y, int64_t outputs, int64_t cols) {
    linear_cpu<T>({.x = x,
                   .weight = weight,
                   .y = y,
                   .rows = args.rows,
                   .outputs = outputs,
                   .cols = cols,
                   .x_stride = cols,
                   .y_stride = outputs});
  };
  const auto weight_of = [&](int64_t row) {
    return args.weights == nullptr ? T(1) : args.weights[row];
  };
  multiply(args.x, args.w1, gate, args.hidden, args.width);
  multiply(args.x, args.w3, up, args.hidden, args.width);
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t begin = row * args.hidden;
    hidden_row(gate + begin, up + begin, args.hidden, weight_of(row), args.options);
  }
  multiply(gate, args.w2, args.y, args.width, args.hidden);
  for (int64_t row = 0; row < args.rows; ++row) {
    const T weight = args.options.weight_before_w2 ? T(1) : weight_of(row);
    T* y = args.y + row * args.width;
    for (int64_t i = 0; i < args.width; ++i) {
      y[i] = stored(y[i], args.options) * weight;
    }
  }
}

template <class T>
void experts_cpu(const ExpertsArgs<T>& args) {
  std::fill(args.y, args.y + args.width, T(0));
  const int64_t area = args.hidden * args.width;
  T* part = args.scratch + 2 * args.hidden;
  for_each_slot_ascending(args.experts, args.slots, args.num_experts, [&](int64_t slot) {
    const int64_t begin = args.experts[slot] * area;
    expert_rows_cpu<T>({.x = args.x,
                        .w1 = args.w1 + begin,
                        .w3 = args.w3 + begin,
                        .w2 = args.w2 + begin,
                        .weights = args.weights + slot,
                        .y = part,
                        .scratch = args.scratch,
                        .rows = 1,
                        .width = args.width,
                        .hidden = args.hidden,
                        .options = args.options});
    add_row(part, args.y, args.width);
  });
}

template <class T>
void sum_slots_cpu(const T* const* parts,
                   const int64_t* experts,
                   int64_t slots,
                   int64_t num_experts,
                   int64_t width,
                   T* y) {
  std::fill(y, y + width, T(0));
  for_each_slot_ascending(
      experts, slots, num_experts, [&](int64_t slot) { add_row(parts[slot], y, width); });
}

template void expert_rows_cpu(const ExpertRowsArgs<float>&);
template void expert_rows_cpu(const ExpertRowsArgs<double>&);
template void experts_cpu(const ExpertsArgs<float>&);
template void experts_cpu(const ExpertsArgs<double>&);
template void sum_slots_cpu(const float* const*, const int64_t*, int64_t, int64_t, int64_t, float*);
template void sum_slots_cpu(
    const double* const*, const int64_t*, int64_t, int64_t, int64_t, double*);

}  // namespace baleen::kernels
