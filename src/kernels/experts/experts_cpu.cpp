#include "kernels/experts/experts_cpu.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/check.h"
#include "kernels/lanes.h"
#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"

namespace baleen::kernels {
namespace {

constexpr int64_t kActivationBlock = 128;  // inputs that share a scale

template <class T>
void add_expert(const ExpertsArgs<T>& args, int64_t expert, T weight) {
  const int64_t area = args.hidden * args.width;
  T* gate = args.scratch;
  T* up = gate + args.hidden;
  T* out = up + args.hidden;
  const auto store = [&](T value) { return args.rounded ? numerics::round_to_bf16(value) : value; };
  multiply_rows(args.w1 + expert * area, args.x, gate, args.hidden, args.width);
  multiply_rows(args.w3 + expert * area, args.x, up, args.hidden, args.width);
  const T limit = static_cast<T>(args.limit);
  for (int64_t i = 0; i < args.hidden; ++i) {
    const T g = std::min(store(gate[i]), limit);
    const T u = std::clamp(store(up[i]), -limit, limit);
    const T a = g / (T(1) + std::exp(-g)) * u;
    gate[i] = store(args.weight_before_w2 ? weight * a : a);
  }
  if (args.quantised) {
    numerics::simulate_s8(std::span<T>(gate, static_cast<std::size_t>(args.hidden)),
                          kActivationBlock);
  }
  multiply_rows(args.w2 + expert * area, gate, out, args.width, args.hidden);
  for (int64_t i = 0; i < args.width; ++i) {
    args.y[i] += args.weight_before_w2 ? store(out[i]) : store(out[i]) * weight;
  }
}

}  // namespace

template <class T>
void experts_cpu(const ExpertsArgs<T>& args) {
  std::fill(args.y, args.y + args.width, T(0));
  // Few slots: the next one is the smallest (expert, slot) pair after the last.
  int64_t last_expert = -1;
  int64_t last_slot = -1;
  for (int64_t done = 0; done < args.slots; ++done) {
    int64_t next = -1;
    for (int64_t slot = 0; slot < args.slots; ++slot) {
      const int64_t expert = args.experts[slot];
      const bool after = expert > last_expert || (expert == last_expert && slot > last_slot);
      if (after && (next < 0 || expert < args.experts[next])) {
        next = slot;
      }
    }
    BALEEN_CHECK(next >= 0, "an expert id is below -1");
    last_expert = args.experts[next];
    last_slot = next;
    BALEEN_CHECK(last_expert >= 0 && last_expert < args.num_experts,
                 "expert {} of {}",
                 last_expert,
                 args.num_experts);
    add_expert(args, last_expert, args.weights[next]);
  }
}

template void experts_cpu(const ExpertsArgs<float>&);
template void experts_cpu(const ExpertsArgs<double>&);

}  // namespace baleen::kernels
