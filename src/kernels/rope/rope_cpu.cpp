#include "kernels/rope/rope_cpu.h"

#include <algorithm>

#include "numerics/bfloat16.h"

namespace baleen::kernels {

template <class T>
void rotate_cpu(const RotateArgs<T>& args) {
  const int64_t first = args.width - 2 * args.pairs;
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* x = args.x + row * args.width;
    T* y = args.y + row * args.width;
    std::copy(x, x + first, y);
    for (int64_t i = 0; i < args.pairs; ++i) {
      const T cosine = args.cis[2 * i];
      const T sine = args.inverse ? -args.cis[2 * i + 1] : args.cis[2 * i + 1];
      const T a = x[first + 2 * i];
      const T b = x[first + 2 * i + 1];
      y[first + 2 * i] = a * cosine - b * sine;
      y[first + 2 * i + 1] = a * sine + b * cosine;
    }
    if (args.rounded) {
      for (int64_t i = 0; i < args.width; ++i) {
        y[i] = numerics::round_to_bf16(y[i]);
      }
    }
  }
}

template void rotate_cpu<float>(const RotateArgs<float>&);
template void rotate_cpu<double>(const RotateArgs<double>&);

}  // namespace baleen::kernels
