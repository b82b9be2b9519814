#include "kernels/sinkhorn/sinkhorn_cpu.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace baleen::kernels {
namespace {

/// p = row softmax of a.
template <class T>
void row_softmax(const T* a, T* p, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    const T* row = a + j * n;
    const T maximum = *std::max_element(row, row + n);
    T sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      p[j * n + k] = std::exp(row[k] - maximum);
      sum += p[j * n + k];
    }
    for (int64_t k = 0; k < n; ++k) {
      p[j * n + k] /= sum;
    }
  }
}

/// y = x / (sum of x along the line + eps), for the n lines that start at multiples of `line` and
/// step by `step`. Divisors are kept for backward when asked for.
template <class T>
void normalise(const T* x, T* y, T* divisors, int64_t n, int64_t line, int64_t step, T eps) {
  for (int64_t i = 0; i < n; ++i) {
    T sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      sum += x[i * line + j * step];
    }
    const T divisor = sum + eps;
    for (int64_t j = 0; j < n; ++j) {
      y[i * line + j * step] = x[i * line + j * step] / divisor;
    }
    if (divisors != nullptr) {
      divisors[i] = divisor;
    }
  }
}

/// dx = (dy - sum of dy * y along the line) / divisor, in place.
template <class T>
void normalise_backward(
    const T* y, const T* divisors, T* gradient, int64_t n, int64_t line, int64_t step) {
  for (int64_t i = 0; i < n; ++i) {
    T inner = 0;
    for (int64_t j = 0; j < n; ++j) {
      inner += gradient[i * line + j * step] * y[i * line + j * step];
    }
    for (int64_t j = 0; j < n; ++j) {
      gradient[i * line + j * step] = (gradient[i * line + j * step] - inner) / divisors[i];
    }
  }
}

void check(const SinkhornShape& shape) {
  BALEEN_CHECK(shape.width > 0 && shape.width <= kSinkhornMaxWidth && shape.iters >= 1,
               "width={} iters={}",
               shape.width,
               shape.iters);
}

}  // namespace

template <class T>
void sinkhorn_cpu(const T* logits, T* comb, const SinkhornShape& shape) {
  check(shape);
  const int64_t n = shape.width;
  const T eps = static_cast<T>(shape.eps);
  for (int64_t m = 0; m < shape.count; ++m) {
    T* c = comb + m * n * n;
    row_softmax(logits + m * n * n, c, n);
    for (int64_t i = 0; i < n * n; ++i) {
      c[i] += eps;
    }
    for (int64_t iter = 0; iter < shape.iters; ++iter) {
      if (iter > 0) {
        normalise<T>(c, c, nullptr, n, n, 1, eps);  // rows
      }
      normalise<T>(c, c, nullptr, n, 1, n, eps);  // columns
    }
  }
}

template <class T>
void sinkhorn_backward_cpu(const T* logits,
                           const T* dcomb,
                           T* dlogits,
                           const SinkhornShape& shape) {
  check(shape);
  const int64_t n = shape.width;
  const int64_t area = n * n;
  const T eps = static_cast<T>(shape.eps);
  const int64_t steps = 2 * shape.iters - 1;
  std::vector<T> values(static_cast<std::size_t>((steps + 2) * area));
  std::vector<T> divisors(static_cast<std::size_t>(steps * n));
  for (int64_t m = 0; m < shape.count; ++m) {
    T* softmax = values.data();
    T* c = softmax + area;  // c + s * area is the input of step s, a column step when s is even
    row_softmax(logits + m * area, softmax, n);
    for (int64_t i = 0; i < area; ++i) {
      c[i] = softmax[i] + eps;
    }
    for (int64_t s = 0; s < steps; ++s) {
      const bool columns = s % 2 == 0;
      normalise<T>(c + s * area,
                   c + (s + 1) * area,
                   divisors.data() + s * n,
                   n,
                   columns ? 1 : n,
                   columns ? n : 1,
                   eps);
    }
    T* gradient = dlogits + m * area;
    std::copy(dcomb + m * area, dcomb + (m + 1) * area, gradient);
    for (int64_t s = steps - 1; s >= 0; --s) {
      const bool columns = s % 2 == 0;
      normalise_backward<T>(c + (s + 1) * area,
                            divisors.data() + s * n,
                            gradient,
                            n,
                            columns ? 1 : n,
                            columns ? n : 1);
    }
    for (int64_t j = 0; j < n; ++j) {
      T inner = 0;
      for (int64_t k = j * n; k < (j + 1) * n; ++k) {
        inner += gradient[k] * softmax[k];
      }
      for (int64_t k = j * n; k < (j + 1) * n; ++k) {
        gradient[k] = softmax[k] * (gradient[k] - inner);
      }
    }
  }
}

template void sinkhorn_cpu(const float*, float*, const SinkhornShape&);
template void sinkhorn_cpu(const double*, double*, const SinkhornShape&);
template void sinkhorn_backward_cpu(const float*, const float*, float*, const SinkhornShape&);
template void sinkhorn_backward_cpu(const double*, const double*, double*, const SinkhornShape&);

}  // namespace baleen::kernels
