#include "weights/parameter_codec.h"

#include <cstring>

#include "base/check.h"
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

}  // namespace baleen::weights
