#pragma once
// Between the numbers of a cached row and its bytes in a pool. The packed formats store rows that
// the model has already rounded, and give them back without loss; the raw forms store the compute
// type. Pure functions on host memory, any thread; `Number` is float or double.
//
//   EntryCodec codec = EntryCodec::kv(KvFormat::kPacked, 512, 64);
//   codec.encode<float>(row, place.value, place.scales);
//   codec.decode<float>(place.value, place.scales, row);

#include <cstdint>
#include <span>

#include "cache/pool_layout.h"

namespace baleen::cache {

/// What the model rounds index keys to: it decides which scale of an FP8 row keeps them whole.
enum class IndexRounding : uint8_t {
  kNone,
  kE2m1,  // groups of 32 with a power of two each
  kE4m3,  // one power of two per 128
};

/// Bytes of one row: values, and scales where the format has them (else null).
struct RowPlace {
  uint8_t* value = nullptr;
  uint8_t* scales = nullptr;
};

class EntryCodec {
 public:
  enum class Form : uint8_t { kF64, kF32, kBf16, kPackedKv, kIndexFp8, kIndexFp4 };

  EntryCodec() = default;
  static EntryCodec kv(KvFormat format, int64_t head_dim, int64_t rope_dim);
  static EntryCodec index(IndexFormat format, int64_t width, IndexRounding rounding);
  /// Plain rows of compressor rings: 4 or 8 bytes per element.
  static EntryCodec ring(int64_t width, int64_t element_bytes);

  int64_t width() const { return width_; }
  // What code that reads and writes the same bytes elsewhere needs to know.
  Form form() const { return form_; }
  int64_t rope_dim() const { return rope_dim_; }        // kPackedKv
  IndexRounding rounding() const { return rounding_; }  // kIndexFp8
  int64_t value_bytes() const;                          // that encode() writes at RowPlace::value
  int64_t scale_bytes() const;  // at RowPlace::scales, without the padding of a block layout

  /// `row` has width() numbers. The packed formats round what was not rounded before.
  template <class Number>
  void encode(std::span<const Number> row, RowPlace place) const;
  template <class Number>
  void decode(RowPlace place, std::span<Number> row) const;

 private:
  EntryCodec(Form form, int64_t width) : form_(form), width_(width) {}

  Form form_ = Form::kF32;
  int64_t width_ = 0;
  int64_t rope_dim_ = 0;                           // kPackedKv
  IndexRounding rounding_ = IndexRounding::kNone;  // kIndexFp8
};

}  // namespace baleen::cache
