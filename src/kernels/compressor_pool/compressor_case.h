#pragma once
// Sequences, page tables and rings around the compressor kernels, for their tests: a pass takes
// chunks of several requests, plans the entries they complete, runs the pool and then the ring
// writer.
//
//   CompressorCase c(CompressorKind::kC4, /*requests=*/2, /*tokens=*/300, /*ring_size=*/8, seed);
//   c.pass({{.request = 0, .begin = 0, .count = 300}}, run);
//   std::vector<uint8_t> entry = c.entry_bytes(0, 5);

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "device/buffer.h"
#include "kernels/compressor_pool/compressor_pool.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels::testing {

inline constexpr int kFullPage = 256;

/// Frequencies of layers with compressed entries: base 160,000 with YaRN, as the model states them.
inline std::vector<float> compressed_frequencies() {
  std::vector<float> table(kRopePairs);
  for (int i = 0; i < kRopePairs; ++i) {
    const double base = std::pow(160000.0, -2.0 * i / 64.0);
    const double ramp = std::clamp((i - 15) / 10.0, 0.0, 1.0);
    table[static_cast<size_t>(i)] = static_cast<float>(base / 16.0 * ramp + base * (1.0 - ramp));
  }
  return table;
}

struct Chunk {
  int request = 0;
  int begin = 0;
  int count = 0;
};

using PoolFunction = std::function<void(const CompressorPoolParams&, cudaStream_t)>;

class CompressorCase {
 public:
  CompressorCase(CompressorKind layer_kind, int requests, int tokens, int ring, uint64_t seed)
      : kind(layer_kind),
        num_tokens(tokens),
        ring_size(ring),
        width(compressor_row_width(layer_kind)),
        dims(compressor_dims(layer_kind)),
        ratio(compressor_ratio(layer_kind)),
        window(compressor_window(layer_kind)),
        blocks((tokens + kFullPage - 1) / kFullPage + 1) {
    RandomValues random(seed);
    values.resize(static_cast<size_t>(requests));
    scores.resize(values.size());
    for (size_t r = 0; r < values.size(); ++r) {
      values[r] = random.normals(int64_t{tokens} * width);
      scores[r] = random.normals(int64_t{tokens} * width, 2);
    }
    ape = random.normals(int64_t{ratio} * width, 0.5F);
    norm_weight = random.normals(dims);
    // Page 0 is the sink; the others go to requests in a mixed order.
    pages.resize(static_cast<size_t>(requests * blocks));
    std::iota(pages.begin(), pages.end(), 1);
    for (size_t i = pages.size(); i > 1; --i) {
      std::swap(pages[i - 1],
                pages[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
    }
    const int64_t num_pages = static_cast<int64_t>(pages.size()) + 1;
    rows_per_page = kind == CompressorKind::kC128 ? 128 : kFullPage / ratio;
    const int64_t pool_pages =
        (num_pages * (kFullPage / ratio) + rows_per_page - 1) / rows_per_page;
    page_bytes = kind == CompressorKind::kIndex
                     ? index_page_bytes(IndexKeyFormat::kFp4InFp8, rows_per_page)
                     : kv_page_bytes(rows_per_page);
    pool_ = device::Buffer<uint8_t>(pool_pages * page_bytes);
    pool_.fill_bytes(0xAB);
    ring_ = device::Buffer<float>(num_pages * ring_size * 2 * width);
    ring_.fill_bytes(0xFF);  // NaN: a row that nobody wrote must not be read
    ape_ = device::Buffer<float>::from_host(ape);
    norm_ = device::Buffer<float>::from_host(norm_weight);
    frequencies_ = device::Buffer<float>::from_host(compressed_frequencies());
  }

  int page_of(int request, int position) const {
    return pages[static_cast<size_t>(request * blocks + position / kFullPage)];
  }
  /// Ring rows of ratio 4 are nested in pages, those of ratio 128 belong to the request.
  int ring_base(int request, int position) const {
    return (kind == CompressorKind::kC128 ? request : page_of(request, position)) * ring_size;
  }
  int destination(int request, int entry) const {
    const int per_page = kFullPage / ratio;
    return page_of(request, entry * ratio) * per_page + entry % per_page;
  }

  /// `captured` > 0 pads the plan to that many entries and gives the count on the device.
  void pass(const std::vector<Chunk>& chunks,
            const PoolFunction& pool,
            cudaStream_t stream,
            int captured = 0) {
    std::vector<float> rows;
    std::vector<CompressorPlanEntry> plan;
    std::vector<RingWriteEntry> writes;
    entries.clear();
    int row = 0;
    for (const Chunk& chunk : chunks) {
      for (int i = 0; i < chunk.count; ++i, ++row) {
        const int position = chunk.begin + i;
        append_row(rows, chunk.request, position);
        if (i >= chunk.count - ring_size) {
          writes.push_back(
              {row, ring_base(chunk.request, position) + position % ring_size, position, 0});
        }
        if ((position + 1) % ratio != 0) {
          continue;
        }
        const int entry = position / ratio;
        plan.push_back({.end_row = row,
                        .rows_from_pass = std::min(i + 1, window),
                        .end_position = position,
                        .destination = destination(chunk.request, entry),
                        .carry_ring_base = ring_base(chunk.request, std::max(position - 4, 0)),
                        .own_ring_base = ring_base(chunk.request, position),
                        .request = chunk.request});
        entries.push_back({chunk.request, entry});
      }
    }
    const auto real = static_cast<int32_t>(plan.size());
    if (captured > 0) {
      plan.resize(static_cast<size_t>(captured),
                  CompressorPlanEntry{.destination = 7});  // not read
    }
    auto rows_buffer = device::Buffer<float>::from_host(rows);
    auto plan_buffer = device::Buffer<CompressorPlanEntry>::from_host(plan);
    auto write_buffer = device::Buffer<RingWriteEntry>::from_host(writes);
    auto count = device::Buffer<int32_t>::from_host(std::vector<int32_t>{real});
    device::Buffer<float> pooled_buffer(static_cast<int64_t>(plan.size()) * dims);
    pooled_buffer.fill_bytes(0xFF);
    CompressorPoolParams params = base_params();
    params.rows = rows_buffer.data();
    params.num_rows = row;
    params.plan = plan_buffer.data();
    params.max_entries = static_cast<int32_t>(plan.size());
    params.num_entries = captured > 0 ? count.data() : nullptr;
    params.pooled = pooled_buffer.data();
    pool(params, stream);
    compressor_ring_write({.kind = kind,
                           .rows = params.rows,
                           .row_stride = params.row_stride,
                           .ape = params.ape,
                           .ring = ring_.data(),
                           .writes = write_buffer.data(),
                           .max_writes = static_cast<int32_t>(writes.size())},
                          stream);
    BALEEN_CUDA_CHECK(cudaStreamSynchronize(stream));
    pooled = pooled_buffer.to_host();
  }

  CompressorPoolParams base_params() {
    CompressorPoolParams params;
    params.kind = kind;
    params.row_stride = 2 * width;
    params.ape = ape_.data();
    params.ring = ring_.data();
    params.ring_size = ring_size;
    params.norm_weight = norm_.data();
    params.frequencies = frequencies_.data();
    params.eps = 1e-6F;
    params.kv_pool = {pool_.data(), page_bytes, rows_per_page};
    params.index_pool = {pool_.data(), page_bytes, rows_per_page, IndexKeyFormat::kFp4InFp8};
    return params;
  }

  std::vector<uint8_t> pool_bytes() const { return pool_.to_host(); }
  /// Values, then scales of one stored entry.
  std::vector<uint8_t> entry_bytes(const std::vector<uint8_t>& bytes,
                                   int request,
                                   int entry) const {
    const int row = destination(request, entry);
    int64_t value = 0;
    int64_t scale = 0;
    int value_bytes = kKvValueBytes;
    int scale_bytes = kKvScaleBytes;
    if (kind == CompressorKind::kIndex) {
      const IndexPoolView view{nullptr, page_bytes, rows_per_page, IndexKeyFormat::kFp4InFp8};
      value = index_value_offset(view, row);
      scale = index_scale_offset(view, row);
      value_bytes = kIndexDims;
      scale_bytes = kIndexScaleBytes;
    } else {
      const KvPoolView view{nullptr, page_bytes, rows_per_page};
      value = kv_value_offset(view, row);
      scale = kv_scale_offset(view, row);
    }
    std::vector<uint8_t> out(bytes.begin() + value, bytes.begin() + value + value_bytes);
    out.insert(out.end(), bytes.begin() + scale, bytes.begin() + scale + scale_bytes);
    return out;
  }

  CompressorKind kind;
  int num_tokens;
  int ring_size;
  int width;
  int dims;
  int ratio;
  int window;
  int blocks;  // pages of 256 tokens per request
  int32_t rows_per_page = 0;
  int64_t page_bytes = 0;
  std::vector<std::vector<float>> values;  // per request [tokens, width]
  std::vector<std::vector<float>> scores;  // per request [tokens, width], without position bias
  std::vector<float> ape;
  std::vector<float> norm_weight;
  std::vector<int> pages;

  struct Completed {
    int request;
    int entry;
  };
  std::vector<Completed> entries;  // of the last pass, in plan order
  std::vector<float> pooled;       // of the last pass [entries, dims]

 private:
  void append_row(std::vector<float>& rows, int request, int position) const {
    const auto begin = static_cast<std::ptrdiff_t>(position) * width;
    const auto& u = values[static_cast<size_t>(request)];
    const auto& z = scores[static_cast<size_t>(request)];
    rows.insert(rows.end(), u.begin() + begin, u.begin() + begin + width);
    rows.insert(rows.end(), z.begin() + begin, z.begin() + begin + width);
  }

  device::Buffer<uint8_t> pool_;
  device::Buffer<float> ring_;
  device::Buffer<float> ape_;
  device::Buffer<float> norm_;
  device::Buffer<float> frequencies_;
};

}  // namespace baleen::kernels::testing
