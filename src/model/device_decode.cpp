#include "model/device_decode.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>

#include "base/check.h"
#include "base/error.h"
#include "numerics/float4.h"
#include "numerics/float8.h"
#include "numerics/weight_format.h"

namespace baleen::model {
namespace {

using weights::WeightFormat;

constexpr int64_t kCodes = 256;
constexpr int64_t kFp8Tile = 128;

/// The bytes on the device; the copy is complete when this returns.
at::Tensor upload(std::span<const std::byte> bytes, at::Device device) {
  // Not written to: from_blob takes no pointer to constants.
  auto* data = const_cast<std::byte*>(bytes.data());  // NOLINT
  return at::from_blob(data, {static_cast<int64_t>(bytes.size())}, at::kByte)
      .to(device, at::kByte, /*non_blocking=*/false, /*copy=*/true);
}

/// value_of(code) for every byte, as [256] on the device.
template <class ValueOf>
at::Tensor table(at::Device device, at::ScalarType dtype, ValueOf&& value_of) {
  at::Tensor values = at::empty({kCodes}, at::kDouble);
  for (int64_t code = 0; code < kCodes; ++code) {
    values.data_ptr<double>()[code] = static_cast<double>(value_of(static_cast<uint8_t>(code)));
  }
  return values.to(device, dtype);
}

/// values[codes], in the shape of the codes.
at::Tensor look_up(const at::Tensor& values, const at::Tensor& codes) {
  return values.index_select(0, codes.reshape({-1}).to(at::kInt)).view(codes.sizes());
}

at::Tensor scales_on(const weights::StoredParameter& stored,
                     at::Device device,
                     at::ScalarType dtype,
                     at::IntArrayRef shape) {
  const std::span<const uint8_t> scales = stored.scales;
  if (std::find(scales.begin(), scales.end(), uint8_t{255}) != scales.end()) {
    throw CheckpointError(stored.source + ": a scale is NaN");
  }
  return look_up(table(device, dtype, numerics::ue8m0_to_float),
                 upload(std::as_bytes(scales), device))
      .view(shape);
}

at::Tensor decode_fp8(const weights::StoredParameter& stored,
                      at::Device device,
                      at::ScalarType dtype) {
  const int64_t rows = stored.shape[0];
  const int64_t cols = stored.shape[1];
  const int64_t scale_rows = numerics::ceil_div(rows, kFp8Tile);
  const int64_t scale_cols = numerics::ceil_div(cols, kFp8Tile);
  const at::Tensor codes = upload(stored.values, device);
  const at::Tensor values =
      look_up(table(device, dtype, numerics::e4m3_to_float), codes).view({rows, cols});
  const at::Tensor scales = scales_on(stored, device, dtype, {scale_rows, scale_cols});
  if (rows % kFp8Tile == 0 && cols % kFp8Tile == 0) {
    return values.view({scale_rows, kFp8Tile, scale_cols, kFp8Tile})
        .mul(scales.view({scale_rows, 1, scale_cols, 1}))
        .view({rows, cols});
  }
  return values.mul(scales.repeat_interleave(kFp8Tile, 0)
                        .narrow(0, 0, rows)
                        .repeat_interleave(kFp8Tile, 1)
                        .narrow(1, 0, cols));
}

at::Tensor decode_fp4(const weights::StoredParameter& stored,
                      at::Device device,
                      at::ScalarType dtype) {
  const int64_t rows = stored.shape[0];
  const int64_t groups = stored.shape[1] / numerics::kFp4Group;
  const at::Tensor bytes = upload(stored.values, device);
  const auto value_of = [](uint8_t code) { return numerics::e2m1_to_float(code); };
  // Tables of whole bytes: the even element's nibble is the low one.
  const at::Tensor even = look_up(table(device, dtype, value_of), bytes);
  const at::Tensor odd = look_up(
      table(device, dtype, [&](uint8_t byte) { return value_of(numerics::high_nibble(byte)); }),
      bytes);
  return at::stack({even, odd}, -1)
      .view({rows, groups, numerics::kFp4Group})
      .mul(scales_on(stored, device, dtype, {rows, groups, 1}))
      .view({rows, groups * numerics::kFp4Group});
}

}  // namespace

bool decodes_on_device(WeightFormat format) {
  return format == WeightFormat::kFp8 || format == WeightFormat::kFp4 ||
         format == WeightFormat::kBf16 || format == WeightFormat::kF32 ||
         format == WeightFormat::kF64;
}

at::Tensor decode_on(const weights::StoredParameter& stored,
                     at::Device device,
                     at::ScalarType dtype) {
  const auto plain = [&](at::ScalarType type) {
    return upload(stored.values, device).view(type).to(dtype).view(stored.shape);
  };
  switch (stored.format) {
    case WeightFormat::kFp8:
      return decode_fp8(stored, device, dtype);
    case WeightFormat::kFp4:
      return decode_fp4(stored, device, dtype);
    case WeightFormat::kBf16:
      return plain(at::kBFloat16);
    case WeightFormat::kF32:
      return plain(at::kFloat);
    case WeightFormat::kF64:
      return plain(at::kDouble);
    default:
      break;
  }
  BALEEN_CHECK(false, "{} is not decoded here", weights::weight_format_name(stored.format));
  return {};
}

}  // namespace baleen::model
