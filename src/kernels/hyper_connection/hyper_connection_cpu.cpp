#include "kernels/hyper_connection/hyper_connection_cpu.h"

#include <cmath>

#include "base/check.h"
#include "kernels/lanes.h"
#include "kernels/sinkhorn/sinkhorn_cpu.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {
namespace {

template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

template <class T>
void round_all(T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = numerics::round_to_bf16(values[i]);
  }
}

/// m = rho * fn x for `outputs` rows.
template <class T>
void mix(const HcMixArgs<T>& args, const T* x, T* m, int64_t outputs) {
  const int64_t count = args.num_streams * args.width;
  const T mean = dot8(x, x, count) / static_cast<T>(count);
  const T rho = T(1) / std::sqrt(mean + static_cast<T>(args.rms_norm_eps));
  multiply_rows(args.fn, x, m, outputs, count);
  for (int64_t i = 0; i < outputs; ++i) {
    m[i] *= rho;
  }
}

/// y = sum_j (sigmoid(m_j * scale + base_j) + hc_eps) x_j.
template <class T>
void collapse(const HcMixArgs<T>& args, const T* x, const T* m, T* y) {
  for (int64_t j = 0; j < args.num_streams; ++j) {
    const T pre = sigmoid(m[j] * args.scale[0] + args.base[j]) + static_cast<T>(args.hc_eps);
    const T* stream = x + j * args.width;
    for (int64_t i = 0; i < args.width; ++i) {
      y[i] = j == 0 ? pre * stream[i] : y[i] + pre * stream[i];
    }
  }
  if (args.rounded) {
    round_all(y, args.width);
  }
}

}  // namespace

template <class T>
void hc_pre_cpu(const HcMixArgs<T>& args) {
  const int64_t n = args.num_streams;
  BALEEN_CHECK(n > 0 && n <= kHcMaxStreams, "num_streams={}", n);
  T m[(2 + kHcMaxStreams) * kHcMaxStreams];
  for (int64_t token = 0; token < args.tokens; ++token) {
    const T* x = args.streams + token * n * args.width;
    mix(args, x, m, (2 + n) * n);
    collapse(args, x, m, args.y + token * args.width);
    for (int64_t j = 0; j < n; ++j) {
      args.post[token * n + j] = T(2) * sigmoid(m[n + j] * args.scale[1] + args.base[n + j]);
    }
    T* comb = args.comb + token * n * n;
    for (int64_t i = 0; i < n * n; ++i) {
      comb[i] = m[2 * n + i] * args.scale[2] + args.base[2 * n + i];
    }
    sinkhorn_cpu<T>(
        comb, comb, {.count = 1, .width = n, .iters = args.sinkhorn_iters, .eps = args.hc_eps});
  }
}

template <class T>
void hc_head_cpu(const HcMixArgs<T>& args) {
  const int64_t n = args.num_streams;
  BALEEN_CHECK(n > 0 && n <= kHcMaxStreams, "num_streams={}", n);
  T m[kHcMaxStreams];
  for (int64_t token = 0; token < args.tokens; ++token) {
    const T* x = args.streams + token * n * args.width;
    mix(args, x, m, n);
    collapse(args, x, m, args.y + token * args.width);
  }
}

template <class T>
void hc_post_cpu(const HcPostArgs<T>& args) {
  const int64_t n = args.num_streams;
  for (int64_t token = 0; token < args.tokens; ++token) {
    const T* y = args.y + token * args.width;
    const T* x = args.streams + token * n * args.width;
    const T* comb = args.comb + token * n * n;
    for (int64_t k = 0; k < n; ++k) {
      T* out = args.out + (token * n + k) * args.width;
      const T post = args.post[token * n + k];
      for (int64_t i = 0; i < args.width; ++i) {
        out[i] = post * y[i];
      }
      for (int64_t j = 0; j < n; ++j) {
        const T weight = comb[j * n + k];
        const T* stream = x + j * args.width;
        for (int64_t i = 0; i < args.width; ++i) {
          out[i] += weight * stream[i];
        }
      }
      if (args.rounded) {
        round_all(out, args.width);
      }
    }
  }
}

template void hc_pre_cpu(const HcMixArgs<float>&);
template void hc_pre_cpu(const HcMixArgs<double>&);
template void hc_head_cpu(const HcMixArgs<float>&);
template void hc_head_cpu(const HcMixArgs<double>&);
template void hc_post_cpu(const HcPostArgs<float>&);
template void hc_post_cpu(const HcPostArgs<double>&);

}  // namespace baleen::kernels
