#pragma once
// Rows of pools as tensors: what cache/entry_codec.h does number by number on the host, for many
// rows at once with tensor operations, so that pools can lie in a device's memory. Bytes and
// numbers are those of the codec. Pure functions; the rows of the packed formats must have been
// rounded to them before, which is where the model uses those formats.
//
//   write_rows(codec, rows, places);                       // rows [n, width], one place each
//   at::Tensor again = read_rows(codec, places, options);  // [n, width]

#include <span>

#include <ATen/core/Tensor.h>

#include "cache/entry_codec.h"

namespace baleen::model {

/// The places lie in memory of the rows' device; no two share a byte.
void write_rows(const cache::EntryCodec& codec,
                const at::Tensor& rows,
                std::span<const cache::RowPlace> places);

/// `options`: dtype float or double, and the device whose memory the places lie in.
at::Tensor read_rows(const cache::EntryCodec& codec,
                     std::span<const cache::RowPlace> places,
                     const at::TensorOptions& options);

}  // namespace baleen::model
