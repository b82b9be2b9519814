#include "kernels/router/router_cpu.h"

#include <cmath>

#include "base/check.h"
#include "kernels/slot_order.h"

namespace baleen::kernels {
namespace {

constexpr double kSoftplusIsIdentity = 20.0;  // above it softplus(z) is z

}  // namespace

template <class T>
void router_scores_cpu(const T* logits, T* scores, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const T z = logits[i];
    scores[i] = std::sqrt(z > static_cast<T>(kSoftplusIsIdentity) ? z : std::log1p(std::exp(z)));
  }
}

template <class T>
void route_weights_cpu(const RouteWeightsArgs<T>& args) {
  const T scale = static_cast<T>(args.scale);
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* scores = args.scores + row * args.num_experts;
    const int64_t* experts = args.experts + row * args.slots;
    T* weights = args.weights + row * args.slots;
    T sum = 0;
    for_each_slot_ascending(experts, args.slots, args.num_experts, [&](int64_t slot) {
      weights[slot] = scores[experts[slot]];
      sum += weights[slot];
    });
    const T divisor = sum + static_cast<T>(args.eps);
    for (int64_t slot = 0; slot < args.slots; ++slot) {
      weights[slot] = sum == T(0) ? static_cast<T>(args.scale / static_cast<double>(args.slots))
                                  : scale * weights[slot] / divisor;
    }
  }
}

template void router_scores_cpu(const float*, float*, int64_t);
template void router_scores_cpu(const double*, double*, int64_t);
template void route_weights_cpu(const RouteWeightsArgs<float>&);
template void route_weights_cpu(const RouteWeightsArgs<double>&);

}  // namespace baleen::kernels
