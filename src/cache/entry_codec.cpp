#include "cache/entry_codec.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"
#include "numerics/float4.h"
#include "numerics/float8.h"

namespace baleen::cache {
namespace {

/// The least FP8 scale of a key whose largest E2M1 group scale is s: 6·s becomes 384 <= 448, and
/// group scales down to 2^-14 of s stay exact.
constexpr float kE2m1ScaleShare = 1.0F / 64.0F;

template <class Stored, class Number>
void store_all(std::span<const Number> row, uint8_t* value) {
  for (const Number number : row) {
    const auto stored = static_cast<Stored>(number);
    std::memcpy(value, &stored, sizeof(Stored));
    value += sizeof(Stored);
  }
}

template <class Stored, class Number>
void load_all(const uint8_t* value, std::span<Number> row) {
  for (Number& number : row) {
    Stored stored;
    std::memcpy(&stored, value, sizeof(Stored));
    number = static_cast<Number>(stored);
    value += sizeof(Stored);
  }
}

template <class Number>
void store_bf16(std::span<const Number> row, uint8_t* value) {
  for (const Number number : row) {
    const uint16_t stored = numerics::bf16_from(number);
    std::memcpy(value, &stored, sizeof(stored));
    value += sizeof(stored);
  }
}

template <class Number>
void load_bf16(const uint8_t* value, std::span<Number> row) {
  for (Number& number : row) {
    uint16_t stored;
    std::memcpy(&stored, value, sizeof(stored));
    number = static_cast<Number>(numerics::bf16_to_float(stored));
    value += sizeof(stored);
  }
}

template <class Number>
float index_scale(std::span<const Number> part, IndexRounding rounding) {
  if (rounding != IndexRounding::kE2m1) {
    return numerics::q8_scale(static_cast<float>(numerics::largest_magnitude(part)));
  }
  float largest = 0;
  numerics::detail::for_each_block(
      part, kIndexFp4ScaleDims, [&](int64_t, int64_t, std::span<const Number> group) {
        const auto amax = static_cast<float>(numerics::largest_magnitude(group));
        largest = std::max(largest, numerics::q4_scale(amax));
      });
  return largest * kE2m1ScaleShare;
}

template <class Number>
void store_index_fp8(std::span<const Number> row, IndexRounding rounding, RowPlace place) {
  numerics::detail::for_each_block(
      row, kIndexFp8ScaleDims, [&](int64_t block, int64_t begin, std::span<const Number> part) {
        const float scale = index_scale(part, rounding);
        std::memcpy(place.scales + block * 4, &scale, sizeof(scale));
        for (std::size_t i = 0; i < part.size(); ++i) {
          place.value[begin + static_cast<int64_t>(i)] =
              numerics::e4m3_from(part[i] / static_cast<Number>(scale));
        }
      });
}

template <class Number>
void load_index_fp8(RowPlace place, std::span<Number> row) {
  numerics::detail::for_each_block(
      row, kIndexFp8ScaleDims, [&](int64_t block, int64_t begin, std::span<Number> part) {
        float scale;
        std::memcpy(&scale, place.scales + block * 4, sizeof(scale));
        for (std::size_t i = 0; i < part.size(); ++i) {
          part[i] = static_cast<Number>(
              numerics::e4m3_to_float(place.value[begin + static_cast<int64_t>(i)]) * scale);
        }
      });
}

template <class Number>
void store_index_fp4(std::span<const Number> row, RowPlace place) {
  numerics::detail::for_each_block(
      row, kIndexFp4ScaleDims, [&](int64_t block, int64_t begin, std::span<const Number> part) {
        const float scale =
            numerics::q4_scale(static_cast<float>(numerics::largest_magnitude(part)));
        place.scales[block] = numerics::ue8m0_from_pow2(scale);
        for (std::size_t i = 0; i < part.size(); i += 2) {
          const auto code = [&](std::size_t at) {
            return at < part.size() ? numerics::e2m1_from(part[at] / static_cast<Number>(scale))
                                    : uint8_t{0};
          };
          place.value[(begin + static_cast<int64_t>(i)) / 2] =
              numerics::pack_e2m1(code(i), code(i + 1));
        }
      });
}

template <class Number>
void load_index_fp4(RowPlace place, std::span<Number> row) {
  numerics::detail::for_each_block(
      row, kIndexFp4ScaleDims, [&](int64_t block, int64_t begin, std::span<Number> part) {
        const float scale = numerics::ue8m0_to_float(place.scales[block]);
        for (std::size_t i = 0; i < part.size(); ++i) {
          const uint8_t byte = place.value[(begin + static_cast<int64_t>(i)) / 2];
          const uint8_t code =
              i % 2 == 0 ? numerics::low_nibble(byte) : numerics::high_nibble(byte);
          part[i] = static_cast<Number>(numerics::e2m1_to_float(code) * scale);
        }
      });
}

}  // namespace

EntryCodec EntryCodec::kv(KvFormat format, int64_t head_dim, int64_t rope_dim) {
  BALEEN_CHECK(
      head_dim > 0 && rope_dim >= 0 && rope_dim <= head_dim, "head={} rope={}", head_dim, rope_dim);
  switch (format) {
    case KvFormat::kPacked: {
      EntryCodec codec(Form::kPackedKv, head_dim);
      codec.rope_dim_ = rope_dim;
      return codec;
    }
    case KvFormat::kRawF64:
      return EntryCodec(Form::kF64, head_dim);
    case KvFormat::kRawF32:
      return EntryCodec(Form::kF32, head_dim);
    case KvFormat::kRawBf16:
      return EntryCodec(Form::kBf16, head_dim);
  }
  BALEEN_CHECK(false, "format={}", static_cast<int>(format));
  return {};
}

EntryCodec EntryCodec::index(IndexFormat format, int64_t width, IndexRounding rounding) {
  BALEEN_CHECK(width > 0, "width={}", width);
  switch (format) {
    case IndexFormat::kFp8: {
      EntryCodec codec(Form::kIndexFp8, width);
      codec.rounding_ = rounding;
      return codec;
    }
    case IndexFormat::kFp4:
      return EntryCodec(Form::kIndexFp4, width);
    case IndexFormat::kRawF64:
      return EntryCodec(Form::kF64, width);
    case IndexFormat::kRawF32:
      return EntryCodec(Form::kF32, width);
    case IndexFormat::kRawBf16:
      return EntryCodec(Form::kBf16, width);
  }
  BALEEN_CHECK(false, "format={}", static_cast<int>(format));
  return {};
}

EntryCodec EntryCodec::ring(int64_t width, int64_t element_bytes) {
  BALEEN_CHECK(width > 0 && (element_bytes == 4 || element_bytes == 8),
               "width={} bytes={}",
               width,
               element_bytes);
  return EntryCodec(element_bytes == 8 ? Form::kF64 : Form::kF32, width);
}

int64_t EntryCodec::value_bytes() const {
  switch (form_) {
    case Form::kF64:
      return 8 * width_;
    case Form::kF32:
      return 4 * width_;
    case Form::kBf16:
      return 2 * width_;
    case Form::kPackedKv:
      return width_ + rope_dim_;
    case Form::kIndexFp8:
      return width_;
    case Form::kIndexFp4:
      return numerics::ceil_div(width_, 2);
  }
  return 0;
}

int64_t EntryCodec::scale_bytes() const {
  switch (form_) {
    case Form::kPackedKv:
      return numerics::ceil_div(width_ - rope_dim_, kKvScaleDims);
    case Form::kIndexFp8:
      return 4 * numerics::ceil_div(width_, kIndexFp8ScaleDims);
    case Form::kIndexFp4:
      return numerics::ceil_div(width_, kIndexFp4ScaleDims);
    case Form::kF64:
    case Form::kF32:
    case Form::kBf16:
      break;
  }
  return 0;
}

template <class Number>
void EntryCodec::encode(std::span<const Number> row, RowPlace place) const {
  BALEEN_DCHECK(static_cast<int64_t>(row.size()) == width_, "row={} width={}", row.size(), width_);
  switch (form_) {
    case Form::kF64:
      return store_all<double>(row, place.value);
    case Form::kF32:
      return store_all<float>(row, place.value);
    case Form::kBf16:
      return store_bf16(row, place.value);
    case Form::kPackedKv: {
      const auto plain = static_cast<std::size_t>(width_ - rope_dim_);
      const auto blocks =
          static_cast<std::size_t>(numerics::ceil_div(width_ - rope_dim_, kKvScaleDims));
      numerics::quantize_q8(row.first(plain),
                            kKvScaleDims,
                            std::span<uint8_t>(place.value, plain),
                            std::span<uint8_t>(place.scales, blocks));
      return store_bf16(row.subspan(plain), place.value + plain);
    }
    case Form::kIndexFp8:
      return store_index_fp8(row, rounding_, place);
    case Form::kIndexFp4:
      return store_index_fp4(row, place);
  }
}

template <class Number>
void EntryCodec::decode(RowPlace place, std::span<Number> row) const {
  BALEEN_DCHECK(static_cast<int64_t>(row.size()) == width_, "row={} width={}", row.size(), width_);
  switch (form_) {
    case Form::kF64:
      return load_all<double>(place.value, row);
    case Form::kF32:
      return load_all<float>(place.value, row);
    case Form::kBf16:
      return load_bf16(place.value, row);
    case Form::kPackedKv: {
      const auto plain = static_cast<std::size_t>(width_ - rope_dim_);
      for (std::size_t i = 0; i < plain; ++i) {
        const float scale = numerics::ue8m0_to_float(place.scales[i / kKvScaleDims]);
        row[i] = static_cast<Number>(numerics::e4m3_to_float(place.value[i]) * scale);
      }
      return load_bf16(place.value + plain, row.subspan(plain));
    }
    case Form::kIndexFp8:
      return load_index_fp8(place, row);
    case Form::kIndexFp4:
      return load_index_fp4(place, row);
  }
}

template void EntryCodec::encode<float>(std::span<const float>, RowPlace) const;
template void EntryCodec::encode<double>(std::span<const double>, RowPlace) const;
template void EntryCodec::decode<float>(RowPlace, std::span<float>) const;
template void EntryCodec::decode<double>(RowPlace, std::span<double>) const;

}  // namespace baleen::cache
