#include "model/row_bytes.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "base/check.h"
#include "ops/block_simulation.h"

namespace baleen::model {
namespace {

using cache::EntryCodec;

constexpr double kE4m3Largest = 448.0;
constexpr double kE2m1ShareOfScale = 1.0 / 64.0;  // as in cache/entry_codec.cpp
constexpr int64_t kE2m1Group = cache::kIndexFp4ScaleDims;

struct RowBytes {
  at::Tensor values;  // uint8 [n, value_bytes]
  at::Tensor scales;  // uint8 [n, scale_bytes]; undefined without scales
};

/// Stretches of equal length anywhere in one memory, as rows of a tensor of words: the widest that
/// divides their length and their distances.
class Stretches {
 public:
  Stretches(const std::vector<uint8_t*>& begins, int64_t bytes, at::Device device)
      : count_(static_cast<int64_t>(begins.size())) {
    const auto [least, most] = std::minmax_element(begins.begin(), begins.end());
    uint8_t* base = *least;
    auto all = static_cast<uint64_t>(bytes) | reinterpret_cast<uintptr_t>(base);
    at::Tensor offsets = at::empty({count_, 1}, at::kLong);
    auto* offset = offsets.data_ptr<int64_t>();
    for (int64_t i = 0; i < count_; ++i) {
      offset[i] = begins[static_cast<std::size_t>(i)] - base;
      all |= static_cast<uint64_t>(offset[i]);
    }
    word_bytes_ = static_cast<int64_t>(std::min<uint64_t>(8, all & (~all + 1)));
    words_ = bytes / word_bytes_;
    for (int64_t i = 0; i < count_; ++i) {
      offset[i] /= word_bytes_;
    }
    memory_ = at::for_blob(base, {(*most - base + bytes) / word_bytes_})
                  .options(at::TensorOptions(word_type()).device(device))
                  .target_device(device)
                  .make_tensor();
    index_ = (offsets.to(device) + at::arange(words_, offsets.options().device(device))).flatten();
  }

  at::Tensor read() const {
    return memory_.index_select(0, index_).view({count_, words_}).view(at::kByte);
  }
  void write(const at::Tensor& bytes) {
    memory_.index_copy_(0, index_, bytes.contiguous().view(word_type()).flatten());
  }

 private:
  at::ScalarType word_type() const {
    return word_bytes_ == 8   ? at::kLong
           : word_bytes_ == 4 ? at::kInt
           : word_bytes_ == 2 ? at::kShort
                              : at::kByte;
  }

  int64_t count_ = 0;
  int64_t words_ = 0;
  int64_t word_bytes_ = 1;
  at::Tensor memory_;
  at::Tensor index_;  // i64 [count · words], into memory_
};

Stretches values_at(const EntryCodec& codec,
                    std::span<const cache::RowPlace> places,
                    at::Device device) {
  std::vector<uint8_t*> begins;
  begins.reserve(places.size());
  for (const cache::RowPlace& place : places) {
    begins.push_back(place.value);
  }
  return {begins, codec.value_bytes(), device};
}

Stretches scales_at(const EntryCodec& codec,
                    std::span<const cache::RowPlace> places,
                    at::Device device) {
  std::vector<uint8_t*> begins;
  begins.reserve(places.size());
  for (const cache::RowPlace& place : places) {
    begins.push_back(place.scales);
  }
  return {begins, codec.scale_bytes(), device};
}

/// [n, blocks] per block to [n, width] per number.
at::Tensor spread(const at::Tensor& of_block, int64_t block, int64_t width) {
  return of_block.unsqueeze(2)
      .expand({of_block.size(0), of_block.size(1), block})
      .reshape({of_block.size(0), of_block.size(1) * block})
      .narrow(1, 0, width);
}

/// Largest magnitude of each block of a row, the last one short; NaN does not take part.
at::Tensor largest_of_blocks(const at::Tensor& x, int64_t block) {
  const int64_t missing = (block - x.size(1) % block) % block;
  const at::Tensor magnitude = x.abs().masked_fill(x.isnan(), 0.0);
  return at::constant_pad_nd(magnitude, {0, missing})
      .view({x.size(0), (x.size(1) + missing) / block, block})
      .amax(2);
}

at::Tensor e4m3_codes(const at::Tensor& x, const at::Tensor& scale) {
  return x.div(scale).clamp(-kE4m3Largest, kE4m3Largest).to(at::kFloat8_e4m3fn).view(at::kByte);
}

at::Tensor e4m3_numbers(const at::Tensor& codes) {
  return codes.view(at::kFloat8_e4m3fn).to(at::kFloat);
}

at::Tensor ue8m0_codes(const at::Tensor& powers_of_two) {
  return powers_of_two.view(at::kInt).bitwise_right_shift(23).to(at::kByte);
}

/// Code 0 is 2^-127, which a shifted exponent cannot say.
at::Tensor ue8m0_numbers(const at::Tensor& codes) {
  const at::Tensor bits = codes.to(at::kInt).bitwise_left_shift(23);
  return bits.masked_fill(codes.eq(0), 0x00400000).view(at::kFloat);
}

at::Tensor index_scale(const at::Tensor& x, cache::IndexRounding rounding) {
  if (rounding != cache::IndexRounding::kE2m1) {
    return ops::block_scale_fp8(largest_of_blocks(x, cache::kIndexFp8ScaleDims));
  }
  const at::Tensor group_scale = ops::block_scale_fp4(largest_of_blocks(x, kE2m1Group));
  const int64_t groups = cache::kIndexFp8ScaleDims / kE2m1Group;
  return largest_of_blocks(group_scale, groups).mul(kE2m1ShareOfScale);
}

RowBytes encode_rows(const EntryCodec& codec, const at::Tensor& rows) {
  switch (codec.form()) {
    case EntryCodec::Form::kF64:
      return {rows.to(at::kDouble).contiguous().view(at::kByte), {}};
    case EntryCodec::Form::kF32:
      return {rows.to(at::kFloat).contiguous().view(at::kByte), {}};
    case EntryCodec::Form::kBf16:
      return {rows.to(at::kFloat).to(at::kBFloat16).contiguous().view(at::kByte), {}};
    case EntryCodec::Form::kPackedKv: {
      const int64_t plain = codec.width() - codec.rope_dim();
      const at::Tensor x = rows.to(at::kFloat);
      const at::Tensor tail =
          x.narrow(1, plain, codec.rope_dim()).to(at::kBFloat16).contiguous().view(at::kByte);
      if (plain == 0) {
        return {tail, {}};
      }
      const at::Tensor head = x.narrow(1, 0, plain);
      const at::Tensor scale = ops::block_scale_fp8(largest_of_blocks(head, cache::kKvScaleDims));
      return {at::cat({e4m3_codes(head, spread(scale, cache::kKvScaleDims, plain)), tail}, 1),
              ue8m0_codes(scale)};
    }
    case EntryCodec::Form::kIndexFp8: {
      const at::Tensor x = rows.to(at::kFloat);
      const at::Tensor scale = index_scale(x, codec.rounding());
      return {e4m3_codes(x, spread(scale, cache::kIndexFp8ScaleDims, codec.width())),
              scale.contiguous().view(at::kByte)};
    }
    case EntryCodec::Form::kIndexFp4:
      break;
  }
  BALEEN_CHECK(false, "form {} is not written by tensors", static_cast<int>(codec.form()));
  return {};
}

at::Tensor decode_rows(const EntryCodec& codec, const RowBytes& bytes, at::ScalarType dtype) {
  switch (codec.form()) {
    case EntryCodec::Form::kF64:
      return bytes.values.view(at::kDouble).to(dtype);
    case EntryCodec::Form::kF32:
      return bytes.values.view(at::kFloat).to(dtype);
    case EntryCodec::Form::kBf16:
      return bytes.values.view(at::kBFloat16).to(dtype);
    case EntryCodec::Form::kPackedKv: {
      const int64_t plain = codec.width() - codec.rope_dim();
      const at::Tensor tail = bytes.values.narrow(1, plain, 2 * codec.rope_dim())
                                  .contiguous()
                                  .view(at::kBFloat16)
                                  .to(at::kFloat);
      if (plain == 0) {
        return tail.to(dtype);
      }
      const at::Tensor head = e4m3_numbers(bytes.values.narrow(1, 0, plain)) *
                              spread(ue8m0_numbers(bytes.scales), cache::kKvScaleDims, plain);
      return at::cat({head, tail}, 1).to(dtype);
    }
    case EntryCodec::Form::kIndexFp8:
      return (e4m3_numbers(bytes.values) *
              spread(bytes.scales.view(at::kFloat), cache::kIndexFp8ScaleDims, codec.width()))
          .to(dtype);
    case EntryCodec::Form::kIndexFp4:
      break;
  }
  BALEEN_CHECK(false, "form {} is not read by tensors", static_cast<int>(codec.form()));
  return {};
}

}  // namespace

void write_rows(const EntryCodec& codec,
                const at::Tensor& rows,
                std::span<const cache::RowPlace> places) {
  BALEEN_CHECK(rows.dim() == 2 && rows.size(1) == codec.width() &&
                   rows.size(0) == static_cast<int64_t>(places.size()),
               "{} rows of width {} for {} places of width {}",
               rows.size(0),
               rows.size(-1),
               places.size(),
               codec.width());
  if (places.empty()) {
    return;
  }
  const RowBytes bytes = encode_rows(codec, rows);
  values_at(codec, places, rows.device()).write(bytes.values);
  if (bytes.scales.defined()) {
    scales_at(codec, places, rows.device()).write(bytes.scales);
  }
}

at::Tensor read_rows(const EntryCodec& codec,
                     std::span<const cache::RowPlace> places,
                     const at::TensorOptions& options) {
  if (places.empty()) {
    return at::empty({0, codec.width()}, options);
  }
  const at::Device device = options.device();
  RowBytes bytes;
  bytes.values = values_at(codec, places, device).read();
  if (codec.scale_bytes() > 0) {
    bytes.scales = scales_at(codec, places, device).read();
  }
  return decode_rows(codec, bytes, options.dtype().toScalarType());
}

}  // namespace baleen::model
