#include "ops/hadamard.h"

#include <bit>
#include <cmath>
#include <span>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include "base/check.h"
#include "numerics/hadamard.h"
#include "ops/fake_quantize.h"
#include "ops/invariant.h"
#include "ops/needs_gradient.h"
#include "ops/rounding.h"

namespace baleen::ops {
namespace {

/// H[i][j] = (-1)^popcount(i & j), built on the device so that nothing is copied to it.
at::Tensor sign_matrix(int64_t width, const at::TensorOptions& options) {
  const at::Tensor index = at::arange(width, options.dtype(at::kInt));
  at::Tensor bits = index.unsqueeze(1).bitwise_and(index.unsqueeze(0));
  for (int shift = 16; shift >= 1; shift /= 2) {
    if ((int64_t{1} << shift) < width) {
      bits = bits.bitwise_xor(bits.bitwise_right_shift(shift));
    }
  }
  return bits.bitwise_and(1).mul(-2).add(1).to(options.dtype());
}

/// Row by row, in the order of numerics/hadamard.h.
at::Tensor by_butterflies(const at::Tensor& x) {
  at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  const int64_t width = x.size(-1);
  AT_DISPATCH_FLOATING_TYPES(y.scalar_type(), "hadamard", [&] {
    auto* data = y.mutable_data_ptr<scalar_t>();
    for (int64_t begin = 0; begin < y.numel(); begin += width) {
      numerics::hadamard(std::span<scalar_t>(data + begin, static_cast<std::size_t>(width)));
    }
  });
  return y;
}

}  // namespace

at::Tensor hadamard(const at::Tensor& x, const Numerics& numerics) {
  const int64_t width = x.size(-1);
  BALEEN_CHECK(std::has_single_bit(static_cast<uint64_t>(width)),
               "Hadamard width {} is not a power of two",
               width);
  const auto by_tensors = [&] {
    return at::matmul(x, sign_matrix(width, x.options().requires_grad(false)))
        .mul(1.0 / std::sqrt(static_cast<double>(width)));
  };
  const at::Tensor turned =
      numerics.invariant()
          ? invariant_value(x, needs_gradient(x), by_tensors, [&] { return by_butterflies(x); })
          : by_tensors();
  return store_activation(turned, numerics);
}

at::Tensor index_transform(const at::Tensor& x, const Numerics& numerics) {
  const at::Tensor turned = numerics.indexer_hadamard ? hadamard(x, numerics) : x;
  switch (numerics.indexer_quant) {
    case IndexerQuant::kFp4:
      return quantize_fp4_block(turned, 32);
    case IndexerQuant::kFp8:
      return quantize_fp8_block(turned, 128);
    case IndexerQuant::kNone:
      break;
  }
  return turned;
}

}  // namespace baleen::ops
