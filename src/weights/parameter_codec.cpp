#include "weights/parameter_codec.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "numerics/bfloat16.h"
#include "numerics/weight_format.h"

namespace baleen::weights {
namespace {

std::span<uint8_t> codes_of(EncodedParameter& encoded) {
  return {reinterpret_cast<uint8_t*>(encoded.values.data()), encoded.values.size()};
}

template <class Stored, class T, class Convert>
void store(std::span<const T> values, EncodedParameter& out, Convert&& convert) {
  out.values.resize(values.size() * sizeof(Stored));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Stored stored = convert(values[i]);
    std::memcpy(out.values.data() + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

template <class T>
EncodedParameter encode(std::span<const T> values,
                        const std::vector<int64_t>& shape,
                        WeightFormat format) {
  EncodedParameter out;
  switch (format) {
    case WeightFormat::kBf16:
      store<uint16_t>(values, out, [](T value) { return numerics::bf16_from(value); });
      return out;
    case WeightFormat::kF32:
      store<float>(values, out, [](T value) { return static_cast<float>(value); });
      return out;
    case WeightFormat::kF64:
      store<double>(values, out, [](T value) { return static_cast<double>(value); });
      return out;
    case WeightFormat::kFp8: {
      const numerics::TileShape tiles{shape[0], shape[1]};
      out.values.resize(values.size());
      out.scales.resize(static_cast<std::size_t>(tiles.scale_rows() * tiles.scale_cols()));
      numerics::quantize_tiles(values, tiles, codes_of(out), std::span<uint8_t>(out.scales));
      return out;
    }
    case WeightFormat::kFp4:
      out.values.resize(values.size() / 2);
      out.scales.resize(values.size() / static_cast<std::size_t>(numerics::kFp4Group));
      numerics::quantize_groups_fp4(
          values, shape[0], shape[1], codes_of(out), std::span<uint8_t>(out.scales));
      return out;
    case WeightFormat::kF16:
    case WeightFormat::kI64:
    case WeightFormat::kI32:
      break;
  }
  BALEEN_CHECK(false, "{} is not written", weight_format_name(format));
  return out;
}

/// Values of a plain type, one at a time because the bytes need not be aligned.
template <class Stored, class T, class Convert>
void load_values(std::span<const std::byte> bytes, std::span<T> out, Convert&& convert) {
  BALEEN_CHECK(bytes.size() == out.size() * sizeof(Stored), "{} {}", bytes.size(), out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = static_cast<T>(convert(value));
  }
}

template <class T>
void decode_values(std::span<const std::byte> stored,
                   std::span<const uint8_t> scales,
                   const std::vector<int64_t>& shape,
                   WeightFormat format,
                   std::span<T> values) {
  const std::span<const uint8_t> codes(reinterpret_cast<const uint8_t*>(stored.data()),
                                       stored.size());
  switch (format) {
    case WeightFormat::kBf16:
      load_values<uint16_t>(stored, values, numerics::bf16_to_float);
      return;
    case WeightFormat::kF16:
      load_values<uint16_t>(stored, values, numerics::half_to_float);
      return;
    case WeightFormat::kF32:
      load_values<float>(stored, values, [](float value) { return value; });
      return;
    case WeightFormat::kF64:
      load_values<double>(stored, values, [](double value) { return value; });
      return;
    case WeightFormat::kFp8:
    case WeightFormat::kFp4:
      if (std::find(scales.begin(), scales.end(), uint8_t{255}) != scales.end()) {
        throw CheckpointError("a scale is NaN");
      }
      if (format == WeightFormat::kFp8) {
        numerics::dequantize_tiles(codes, scales, numerics::TileShape{shape[0], shape[1]}, values);
      } else {
        numerics::dequantize_groups_fp4(codes, scales, shape[0], shape[1], values);
      }
      return;
    case WeightFormat::kI64:
    case WeightFormat::kI32:
      break;
  }
  BALEEN_CHECK(false, "{} is a table", weight_format_name(format));
}

}  // namespace

EncodedParameter encode_parameter(std::span<const float> values,
                                  const std::vector<int64_t>& shape,
                                  WeightFormat format) {
  return encode(values, shape, format);
}

EncodedParameter encode_parameter(std::span<const double> values,
                                  const std::vector<int64_t>& shape,
                                  WeightFormat format) {
  return encode(values, shape, format);
}

EncodedParameter encode_table(std::span<const int64_t> values) {
  EncodedParameter out;
  store<int64_t>(values, out, [](int64_t value) { return value; });
  return out;
}

void decode_parameter(std::span<const std::byte> stored,
                      std::span<const uint8_t> scales,
                      const std::vector<int64_t>& shape,
                      WeightFormat format,
                      std::span<float> values) {
  decode_values(stored, scales, shape, format, values);
}

void decode_parameter(std::span<const std::byte> stored,
                      std::span<const uint8_t> scales,
                      const std::vector<int64_t>& shape,
                      WeightFormat format,
                      std::span<double> values) {
  decode_values(stored, scales, shape, format, values);
}

void decode_table(std::span<const std::byte> stored,
                  WeightFormat format,
                  std::span<int64_t> values) {
  if (format == WeightFormat::kI64) {
    load_values<int64_t>(stored, values, [](int64_t value) { return value; });
    return;
  }
  BALEEN_CHECK(format == WeightFormat::kI32, "{} holds no integers", weight_format_name(format));
  load_values<int32_t>(stored, values, [](int32_t value) { return value; });
}

}  // namespace baleen::weights
