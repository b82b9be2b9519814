#include "base/check.h"
#include "device/launch.h"
#include "kernels/pick_codes/pick_codes.h"
#include "numerics/pick_shape.h"

namespace baleen::kernels {
namespace {

constexpr int kThreads = 128;
constexpr uint32_t kBitmapCode = 1;
constexpr uint32_t kSortedCode = 2;
// Of 2^31 entries and kMostCodedPicks: 20 low bits each, and three bits each in the second part.
constexpr int kMostWords = (1 + kMostCodedPicks * 23 / 8) / 4 + 2;

/// Sets `value`, of `bits` bits, at a bit of the zeroed words: byte b / 8, bit b % 8 first.
__device__ __forceinline__ void put_bits(uint32_t* words, int64_t bit, uint32_t value, int bits) {
  const auto word = static_cast<int32_t>(bit / 32);
  const auto shift = static_cast<int32_t>(bit % 32);
  atomicOr(words + word, value << shift);
  if (shift + bits > 32) {
    atomicOr(words + word + 1, value >> (32 - shift));
  }
}

/// A block per layer and token.
__global__ void __launch_bounds__(kThreads) pick_codes_kernel(const PickCodesParams params) {
  __shared__ uint32_t words[kMostWords];
  const auto layer = static_cast<int64_t>(blockIdx.x);
  const auto token = static_cast<int64_t>(blockIdx.y);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t visible = params.visible[token];
  if (visible <= params.topk) {
    return;
  }
  const numerics::PickShape shape = numerics::pick_shape(visible, params.topk);
  const auto num_words = static_cast<int32_t>((shape.bytes + 3) / 4 + 1);
  for (int32_t i = thread; i < num_words; i += kThreads) {
    words[i] = 0;
  }
  __syncthreads();
  if (thread == 0) {
    atomicOr(words, shape.sorted ? kSortedCode : kBitmapCode);
  }
  const int32_t* picks = params.picks + layer * params.layer_stride + token * params.topk;
  for (int32_t i = thread; i < params.topk; i += kThreads) {
    const int32_t pick = picks[i];
    const int32_t before = i == 0 ? -1 : picks[i - 1];
    if (pick <= before || pick >= visible) {
      atomicAdd(params.errors, 1U);
      continue;
    }
    if (!shape.sorted) {
      put_bits(words, 8 + int64_t{pick}, 1, 1);
      continue;
    }
    if (shape.low_bits > 0) {
      const uint32_t low = static_cast<uint32_t>(pick) & ((1U << shape.low_bits) - 1U);
      put_bits(words, 8 + int64_t{i} * shape.low_bits, low, shape.low_bits);
    }
    put_bits(words, 8 * (1 + shape.low_bytes) + (pick >> shape.low_bits) + i, 1, 1);
  }
  __syncthreads();
  const auto* bytes = reinterpret_cast<const uint8_t*>(words);
  uint8_t* codes = params.codes + token * params.token_stride + layer * shape.bytes;
  for (int32_t i = thread; i < static_cast<int32_t>(shape.bytes); i += kThreads) {
    codes[i] = bytes[i];
  }
}

}  // namespace

void pick_codes(const PickCodesParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(params.num_tokens >= 0 && params.num_tokens <= 65535 && params.num_layers >= 0 &&
                   params.topk > 0 && params.topk <= kMostCodedPicks,
               "tokens={} layers={} topk={}",
               params.num_tokens,
               params.num_layers,
               params.topk);
  if (params.num_tokens == 0 || params.num_layers == 0) {
    return;
  }
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(params.num_layers),
                               static_cast<unsigned>(params.num_tokens)),
                  .block = dim3(kThreads)},
                 pick_codes_kernel,
                 params);
}

}  // namespace baleen::kernels
