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

template void rms_norm_cpu<float>(const RmsNormArgs<float>&);
template void rms_norm_cpu<double>(const RmsNormArgs<double>&);

}  // namespace baleen::kernels
