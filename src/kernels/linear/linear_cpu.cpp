#include "kernels/linear/linear_cpu.h"

#include <algorithm>

#include "kernels/lanes.h"

namespace baleen::kernels {
namespace {

constexpr int64_t kRowBlock = 32;  // rows that stay in the cache while the weight passes by

/// Two rows times kOutputs weight rows; as many sums as fit in sixteen vector registers.
template <class T>
struct LinearTile {
  static constexpr int64_t kOutputs = sizeof(T) == sizeof(float) ? 4 : 2;

  static void run(const T* x0, const T* x1, const T* weight, int64_t cols, T* y0, T* y1) {
    detail::Lanes<T> a[kOutputs];
    detail::Lanes<T> b[kOutputs];
    int64_t i = 0;
    for (; i + kLanes <= cols; i += kLanes) {
      const T* w = weight + i;
      a[0].add(w, x0 + i);
      b[0].add(w, x1 + i);
      a[1].add(w + cols, x0 + i);
      b[1].add(w + cols, x1 + i);
      if constexpr (kOutputs == 4) {
        a[2].add(w + 2 * cols, x0 + i);
        b[2].add(w + 2 * cols, x1 + i);
        a[3].add(w + 3 * cols, x0 + i);
        b[3].add(w + 3 * cols, x1 + i);
      }
    }
    for (; i < cols; ++i) {
      for (int64_t k = 0; k < kOutputs; ++k) {
        a[k].sum[i % kLanes] += weight[k * cols + i] * x0[i];
        b[k].sum[i % kLanes] += weight[k * cols + i] * x1[i];
      }
    }
    for (int64_t k = 0; k < kOutputs; ++k) {
      y0[k] = a[k].fold();
      y1[k] = b[k].fold();
    }
  }
};

template <class T>
void multiply_block(const LinearCpuArgs<T>& args, int64_t begin, int64_t end) {
  constexpr int64_t kOutputs = LinearTile<T>::kOutputs;
  const int64_t paired = begin + (end - begin) / 2 * 2;
  const int64_t tiled = args.outputs / kOutputs * kOutputs;
  for (int64_t o = 0; o < tiled; o += kOutputs) {
    const T* weight = args.weight + o * args.cols;
    for (int64_t r = begin; r < paired; r += 2) {
      const T* x = args.x + r * args.x_stride;
      T* y = args.y + r * args.y_stride + o;
      LinearTile<T>::run(x, x + args.x_stride, weight, args.cols, y, y + args.y_stride);
    }
  }
  for (int64_t r = begin; r < end; ++r) {
    const int64_t first = r < paired ? tiled : 0;
    multiply_rows(args.weight + first * args.cols,
                  args.x + r * args.x_stride,
                  args.y + r * args.y_stride + first,
                  args.outputs - first,
                  args.cols);
  }
}

}  // namespace

template <class T>
void linear_cpu(const LinearCpuArgs<T>& args) {
  for (int64_t begin = 0; begin < args.rows; begin += kRowBlock) {
    multiply_block(args, begin, std::min(args.rows, begin + kRowBlock));
  }
}

template void linear_cpu(const LinearCpuArgs<float>&);
template void linear_cpu(const LinearCpuArgs<double>&);

}  // namespace baleen::kernels
