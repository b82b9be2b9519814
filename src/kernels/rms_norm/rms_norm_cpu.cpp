#include "kernels/rms_norm/rms_norm_cpu.h"

#include <cmath>

#include "kernels/lanes.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {

template <class T>
void rms_norm_cpu(const RmsNormArgs<T>& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* x = args.x + row * args.width;
    T* y = args.y + row * args.width;
    const T mean = dot8(x, x, args.width) / static_cast<T>(args.width);
    const T rho = T(1) / std::sqrt(mean + static_cast<T>(args.eps));
    for (int64_t i = 0; i < args.width; ++i) {
      const T unit = x[i] * rho;
      y[i] = args.weight == nullptr ? unit : unit * args.weight[i];
    }
    if (args.rounded) {
      for (int64_t i = 0; i < args.width; ++i) {
        y[i] = numerics::round_to_bf16(y[i]);
      }
    }
  }
}

template <class T>
void rms_norm_stepwise_cpu(const RmsNormArgs<T>& args) {
  const auto store = [](T value) { return numerics::round_to_bf16(value); };
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* x = args.x + row * args.width;
    T* y = args.y + row * args.width;
    T lanes[kLanes] = {};
    for (int64_t i = 0; i < args.width; ++i) {
      const T value = store(x[i]);
      lanes[i % kLanes] += store(value * value);
    }
    const T sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                  ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    const T mean = store(sum / static_cast<T>(args.width));
    const T rho = store(T(1) / std::sqrt(store(mean + static_cast<T>(args.eps))));
    for (int64_t i = 0; i < args.width; ++i) {
      y[i] = store(store(x[i]) * rho);
    }
  }
}

template void rms_norm_stepwise_cpu<float>(const RmsNormArgs<float>&);
template void rms_norm_stepwise_cpu<double>(const RmsNormArgs<double>&);
template void rms_norm_cpu<float>(const RmsNormArgs<float>&);
template void rms_norm_cpu<double>(const RmsNormArgs<double>&);

}  // namespace baleen::kernels
