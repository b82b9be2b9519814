// One block per token, nothing clever: the same formula and rounding points as the cluster kernel,
// in an order of summation of its own.

#include "base/check.h"
#include "device/launch.h"
#include "kernels/cache_entry/row_math.cuh"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/ptx/convert.cuh"
#include "kernels/sinkhorn/sinkhorn.cuh"

namespace baleen::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;

__device__ float load_bf16(const uint16_t* place) {
  return numerics::bf16_to_float(*place);
}

/// Element `column` of new stream k, a bf16 value.
__device__ float new_stream(const HcFusedParams& p, int64_t token, int k, int64_t column) {
  float y = 0.0F;
  for (int i = 0; i < p.num_parts; ++i) {
    y += load_bf16(p.parts[i] + token * p.width + column);
  }
  y = to_bf16(y);
  if (p.residual == nullptr) {
    return y;
  }
  const uint16_t* residual = p.residual + token * kHcStreams * p.width + column;
  if (p.post == nullptr) {
    return load_bf16(residual + static_cast<int64_t>(k) * p.width);
  }
  float sum = p.post[token * kHcStreams + k] * y;
  for (int j = 0; j < kHcStreams; ++j) {
    sum = fmaf(p.comb[(token * kHcStreams + j) * kHcStreams + k],
               load_bf16(residual + static_cast<int64_t>(j) * p.width),
               sum);
  }
  return to_bf16(sum);
}

__device__ float block_sum(float value, float (&parts)[kWarps]) {
  value = warp_sum(value);
  __syncthreads();  // parts may still be read from the sum before
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float sum = 0.0F;
  for (const float part : parts) {
    sum += part;
  }
  return sum;
}

__device__ float sigmoid(float z) {
  return 1.0F / (1.0F + expf(-z));
}

/// shared: bf16 values of the token's four streams as floats, then u: 5 * width floats.
__global__ void __launch_bounds__(kThreads) hc_fused_portable_kernel(HcFusedParams p) {
  extern __shared__ float values[];
  __shared__ float parts[kWarps];
  __shared__ float m[kHcRows];
  __shared__ float pre[kHcStreams];
  const int64_t token = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  float* u = values + kHcStreams * p.width;

  float square = 0.0F;
  for (int column = thread; column < p.width; column += kThreads) {
    float x[kHcStreams];
    for (int k = 0; k < kHcStreams; ++k) {
      x[k] = new_stream(p, token, k, column);
    }
    for (int k = 0; k < kHcStreams; ++k) {
      values[k * p.width + column] = x[k];
      square = fmaf(x[k], x[k], square);
      if (p.streams != nullptr) {
        p.streams[(token * kHcStreams + k) * p.width + column] = numerics::bf16_from_float(x[k]);
      }
    }
  }
  const float rho = inverse_rms(block_sum(square, parts), kHcStreams * p.width, p.rms_norm_eps);
  for (int row = thread / 32; row < p.rows; row += kWarps) {
    const float* fn = p.fn + static_cast<int64_t>(row) * kHcStreams * p.width;
    float sum = 0.0F;
    for (int i = lane; i < kHcStreams * p.width; i += 32) {
      sum = fmaf(fn[i], values[i], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      m[row] = sum * rho;
    }
  }
  __syncthreads();
  if (thread < kHcStreams) {
    pre[thread] = sigmoid(m[thread] * p.scale[0] + p.base[thread]) + p.hc_eps;
    if (p.rows == kHcRows) {
      const int row = kHcStreams + thread;
      p.post_out[token * kHcStreams + thread] = 2.0F * sigmoid(m[row] * p.scale[1] + p.base[row]);
    }
  }
  if (thread == kThreads - 1 && p.rows == kHcRows) {
    float comb[16];
    for (int i = 0; i < 16; ++i) {
      const int row = 2 * kHcStreams + i;
      comb[i] = m[row] * p.scale[2] + p.base[row];
    }
    sinkhorn4(comb, p.hc_eps, p.sinkhorn_iters);
    for (int i = 0; i < 16; ++i) {
      p.comb_out[token * 16 + i] = comb[i];
    }
  }
  __syncthreads();

  square = 0.0F;
  for (int column = thread; column < p.width; column += kThreads) {
    float sum = 0.0F;
    for (int j = 0; j < kHcStreams; ++j) {
      sum = fmaf(pre[j], values[j * p.width + column], sum);
    }
    u[column] = to_bf16(sum);
    square = fmaf(u[column], u[column], square);
    if (p.collapsed != nullptr) {
      p.collapsed[token * p.width + column] = numerics::bf16_from_float(sum);
    }
  }
  const float norm = inverse_rms(block_sum(square, parts), p.width, p.rms_norm_eps);
  for (int block = thread / 32; block < p.width / kHcQuantDims; block += kWarps) {
    float y[4];
    for (int i = 0; i < 4; ++i) {
      const int column = block * kHcQuantDims + 4 * lane + i;
      y[i] = normalised(u[column], norm, p.norm_weight[column]);
      if (p.y != nullptr) {
        p.y[token * p.width + column] = numerics::bf16_from_float(y[i]);
      }
    }
    if (p.codes != nullptr) {
      const float scale = numerics::q8_scale(group_amax<32>(largest(y)));
      const float inverse = inverse_pow2(scale);
      const int64_t column = token * p.width + block * kHcQuantDims + 4 * lane;
      *reinterpret_cast<uint32_t*>(p.codes + column) =
          ptx::pack_e4m3(y[0] * inverse, y[1] * inverse, y[2] * inverse, y[3] * inverse);
      if (lane == 0) {
        p.scales[token * (p.width / kHcQuantDims) + block] = numerics::ue8m0_from_pow2(scale);
      }
    }
  }
}

}  // namespace

bool hc_fused_portable_supports(int32_t width) {
  return width > 0 && width % kHcQuantDims == 0 && width <= 8192;
}

void hc_fused_portable(const HcFusedParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(hc_fused_portable_supports(params.width), "width={}", params.width);
  BALEEN_CHECK(params.num_tokens >= 0, "num_tokens={}", params.num_tokens);
  if (params.num_tokens == 0) {
    return;
  }
  device::launch(
      stream,
      {.grid = dim3(static_cast<unsigned>(params.num_tokens)),
       .block = dim3(kThreads),
       .shared_bytes = static_cast<std::size_t>(params.width) * (kHcStreams + 1) * sizeof(float)},
      hc_fused_portable_kernel,
      params);
}

}  // namespace baleen::kernels
