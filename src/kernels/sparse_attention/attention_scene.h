#pragma once
// Random caches and queries for tests and benchmarks of attention: paged pools on the host, lists
// of rows, their values in double and the expected output. Rows that no list names hold NaN
// patterns.
//
//   AttentionScene scene({.heads = 16, .queries = 3, .first = {.length = 128}});
//   scene.upload(); launch_sparse_attention(scene.params(plan), stream); scene.check(...);

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "kernels/rope/rope_oracle.h"
#include "kernels/sparse_attention/kv_row_oracle.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "kernels/sparse_attention/sparse_attention_oracle.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels::testing {

struct SceneSource {
  int32_t length = 0;                 // rows of the longest query; 0: source absent
  std::vector<int32_t> lengths = {};  // per query, cycled; empty: `length` for all
  int32_t capacity = 0;               // 0: `length` rounded up to 64
  int32_t rows_per_page = 64;
  bool dense = false;
  int32_t entries_per_page = 2;
  int32_t missing_every = 0;  // every n-th slot of a list is -1; 1: all
  int32_t missing_first = 0;  // so many leading slots are -1
  bool duplicates = false;    // lists draw from few rows
};

struct SceneOptions {
  int32_t heads = 16;
  int32_t queries = 1;
  SceneSource first = {};
  SceneSource second = {};
  bool with_sink = true;
  bool inverse_rope = false;
  int scale_low = 125;  // scale bytes of rows
  int scale_high = 128;
  float q_size = 1;
  uint64_t seed = 1;
};

class ScenePool {
 public:
  ScenePool(int32_t rows_per_page, int64_t rows)
      : rows_per_page_(rows_per_page),
        page_bytes_(kv_page_bytes(rows_per_page)),
        pages_((rows + rows_per_page - 1) / rows_per_page),
        bytes_(static_cast<std::size_t>(std::max<int64_t>(pages_, 1) * page_bytes_), 0xFF) {}

  void write_row(int32_t row, RandomValues& random, int scale_low, int scale_high) {
    uint8_t* values = bytes_.data() + kv_value_offset(view(), row);
    uint8_t* scales = bytes_.data() + kv_scale_offset(view(), row);
    for (int i = 0; i < kKvNopeDims; ++i) {
      values[i] = numerics::e4m3_from_float(random.normal(1.5F));
    }
    for (int i = 0; i < kKvRopeDims; ++i) {
      set_rope(row, i, numerics::bf16_from_float(random.normal()));
    }
    for (int i = 0; i < kKvScales; ++i) {
      scales[i] = static_cast<uint8_t>(random.integer(scale_low, scale_high));
    }
    scales[kKvScales] = 0;
  }
  void set_rope(int32_t row, int dim, uint16_t bits) {
    uint8_t* at = bytes_.data() + kv_value_offset(view(), row) + kKvNopeDims + 2 * dim;
    at[0] = static_cast<uint8_t>(bits & 0xFF);
    at[1] = static_cast<uint8_t>(bits >> 8);
  }
  std::vector<double> values(int32_t row) const {
    return kv_row_oracle(bytes_.data() + kv_value_offset(view(), row),
                         bytes_.data() + kv_scale_offset(view(), row));
  }
  KvPoolView view() const {
    return {.base = device_.data() == nullptr ? nullptr : const_cast<uint8_t*>(device_.data()),
            .page_bytes = page_bytes_,
            .rows_per_page = rows_per_page_};
  }
  void upload() { device_ = device::Buffer<uint8_t>::from_host(bytes_); }
  int64_t rows() const { return pages_ * rows_per_page_; }
  std::vector<uint8_t>& bytes() { return bytes_; }

 private:
  int32_t rows_per_page_;
  int64_t page_bytes_;
  int64_t pages_;
  std::vector<uint8_t> bytes_;
  device::Buffer<uint8_t> device_;
};

/// One source: its pool, its lists or pages, and what they mean.
class SceneRows {
 public:
  SceneRows(const SceneSource& source, int32_t queries, RandomValues& random, int low, int high)
      : source_(source),
        capacity_(source.capacity != 0 ? source.capacity : (source.length + 63) / 64 * 64),
        stride_(source.dense ? (capacity_ + source.entries_per_page - 1) / source.entries_per_page
                             : capacity_),
        pool_(source.rows_per_page, pool_rows(source, queries)) {
    if (source.length == 0) {
      return;
    }
    const auto total = static_cast<int32_t>(pool_.rows());
    std::vector<bool> written(static_cast<std::size_t>(total));
    table_.assign(static_cast<std::size_t>(queries * stride_), -1);
    for (int32_t query = 0; query < queries; ++query) {
      const int32_t length =
          source.lengths.empty()
              ? source.length
              : source.lengths[static_cast<std::size_t>(query) % source.lengths.size()];
      lengths_.push_back(length);
      int32_t* table = table_.data() + query * stride_;
      for (int32_t slot = 0; slot < length; ++slot) {
        if (source.dense) {
          int32_t& page = table[slot / source.entries_per_page];
          if (page < 0) {
            page = static_cast<int32_t>(random.integer(0, total / source.entries_per_page - 1));
          }
        } else {
          const bool missing =
              slot < source.missing_first ||
              (source.missing_every > 0 && slot % source.missing_every == source.missing_every - 1);
          table[slot] =
              missing ? -1
                      : static_cast<int32_t>(random.integer(0, source.duplicates ? 2 : total - 1));
        }
        const int32_t row = row_of(query, slot);
        if (row >= 0 && !written[static_cast<std::size_t>(row)]) {
          pool_.write_row(row, random, low, high);
          written[static_cast<std::size_t>(row)] = true;
        }
      }
    }
  }
  int32_t row_of(int32_t query, int32_t slot) const {
    const int32_t* table = table_.data() + query * stride_;
    if (!source_.dense) {
      return table[slot];
    }
    return table[slot / source_.entries_per_page] * source_.entries_per_page +
           slot % source_.entries_per_page;
  }
  /// Points a list's slot at a row, which the caller writes.
  void set_row(int32_t query, int32_t slot, int32_t row) {
    table_[static_cast<std::size_t>(query * stride_ + slot)] = row;
  }
  void append(int32_t query, std::vector<std::vector<double>>& rows) const {
    if (lengths_.empty()) {
      return;
    }
    for (int32_t slot = 0; slot < lengths_[static_cast<std::size_t>(query)]; ++slot) {
      if (row_of(query, slot) >= 0) {
        rows.push_back(pool_.values(row_of(query, slot)));
      }
    }
  }
  void upload() {
    pool_.upload();
    device_table_ = device::Buffer<int32_t>::from_host(table_);
    device_lengths_ = device::Buffer<int32_t>::from_host(lengths_);
  }
  SparseAttentionSource source() const {
    if (lengths_.empty()) {
      return {};
    }
    return {.pool = pool_.view(),
            .rows = source_.dense ? nullptr : device_table_.data(),
            .pages = source_.dense ? device_table_.data() : nullptr,
            .lengths = device_lengths_.data(),
            .stride = stride_,
            .capacity = capacity_,
            .entries_per_page = source_.entries_per_page};
  }
  int32_t capacity() const { return lengths_.empty() ? 0 : capacity_; }
  bool dense() const { return source_.dense; }
  ScenePool& pool() { return pool_; }
  /// Exchanges the lists of queries: query i reads what order[i] read.
  void permute(const std::vector<int32_t>& order) {
    if (lengths_.empty()) {
      return;
    }
    const std::vector<int32_t> table = table_;
    const std::vector<int32_t> lengths = lengths_;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto from = static_cast<std::size_t>(order[i]);
      lengths_[i] = lengths[from];
      const auto width = static_cast<std::size_t>(stride_);
      std::copy_n(table.begin() + static_cast<int64_t>(from * width),
                  width,
                  table_.begin() + static_cast<int64_t>(i * width));
    }
  }

 private:
  static int64_t pool_rows(const SceneSource& source, int32_t queries) {
    const int64_t wanted = static_cast<int64_t>(source.length) * std::min(queries, 3) + 300;
    return source.length == 0 ? 0 : wanted;
  }

  SceneSource source_;
  int32_t capacity_;
  int64_t stride_;
  ScenePool pool_;
  std::vector<int32_t> table_;
  std::vector<int32_t> lengths_;
  device::Buffer<int32_t> device_table_;
  device::Buffer<int32_t> device_lengths_;
};

struct SceneOutput {
  std::vector<uint16_t> o;
  std::vector<float> lse;
  std::vector<float> lse_with_sink;
  friend bool operator==(const SceneOutput&, const SceneOutput&) = default;
};

class AttentionScene {
 public:
  explicit AttentionScene(const SceneOptions& options)
      : options_(options),
        random_(options.seed),
        first_(options.first, options.queries, random_, options.scale_low, options.scale_high),
        second_(options.second, options.queries, random_, options.scale_low, options.scale_high) {
    q_ = random_.bf16_normals(elements(), options.q_size);
    if (options.with_sink) {
      sink_ = random_.normals(options.heads, 2);
    }
    for (int i = 0; i < kRopePairs; ++i) {
      frequencies_.push_back(std::pow(10000.0F, -static_cast<float>(i) / kRopePairs));
    }
    for (int32_t i = 0; i < options.queries; ++i) {
      positions_.push_back(static_cast<int32_t>(random_.integer(0, 5000)));
    }
  }
  int64_t elements() const {
    return static_cast<int64_t>(options_.queries) * options_.heads * kKvDims;
  }
  SparseAttentionShape shape() const {
    return {.num_queries = options_.queries,
            .heads = options_.heads,
            .first_capacity = first_.capacity(),
            .second_capacity = second_.capacity(),
            .second_is_dense = second_.dense()};
  }
  void upload() {
    first_.upload();
    second_.upload();
    device_q_ = device::Buffer<uint16_t>::from_host(q_);
    device_sink_ = device::Buffer<float>::from_host(sink_);
    device_positions_ = device::Buffer<int32_t>::from_host(positions_);
    device_frequencies_ = device::Buffer<float>::from_host(frequencies_);
    o_ = device::Buffer<uint16_t>(elements());
    lse_ = device::Buffer<float>(static_cast<int64_t>(options_.queries) * options_.heads);
    lse_with_sink_ = device::Buffer<float>(static_cast<int64_t>(options_.queries) * options_.heads);
    o_.fill_bytes(0xFF);
    lse_.fill_bytes(0xFF);
    lse_with_sink_.fill_bytes(0xFF);
  }
  SparseAttentionParams params(const SparseAttentionPlan& plan) {
    const auto bytes = static_cast<int64_t>(sparse_attention_workspace_bytes(shape(), plan));
    if (workspace_.count() < bytes || !(plan_ == plan)) {
      workspace_ = device::Buffer<uint8_t>(bytes);
      workspace_.fill_bytes(0);
      BALEEN_CUDA_CHECK(cudaDeviceSynchronize());  // painting does not wait for itself
      plan_ = plan;
    }
    return {.q = device_q_.data(),
            .first = first_.source(),
            .second = second_.source(),
            .sink = sink_.empty() ? nullptr : device_sink_.data(),
            .o = o_.data(),
            .lse = lse_.data(),
            .lse_with_sink = lse_with_sink_.data(),
            .positions = options_.inverse_rope ? device_positions_.data() : nullptr,
            .frequencies = options_.inverse_rope ? device_frequencies_.data() : nullptr,
            .workspace = workspace_.data(),
            .num_queries = options_.queries,
            .heads = options_.heads,
            .plan = plan};
  }
  void paint_output() {
    o_.fill_bytes(0xFF);
    lse_.fill_bytes(0xFF);
    lse_with_sink_.fill_bytes(0xFF);
    BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
  }
  SceneOutput output() const { return {o_.to_host(), lse_.to_host(), lse_with_sink_.to_host()}; }
  AttentionOutcome expected(int32_t query, int32_t head) const {
    std::vector<std::vector<double>> rows;
    first_.append(query, rows);
    second_.append(query, rows);
    std::vector<std::span<const double>> spans(rows.begin(), rows.end());
    const int64_t begin = (static_cast<int64_t>(query) * options_.heads + head) * kKvDims;
    std::vector<double> q(kKvDims);
    for (int i = 0; i < kKvDims; ++i) {
      q[static_cast<std::size_t>(i)] =
          static_cast<double>(numerics::bf16_to_float(q_[static_cast<std::size_t>(begin + i)]));
    }
    const double sink = sink_.empty() ? -std::numeric_limits<double>::infinity()
                                      : static_cast<double>(sink_[static_cast<std::size_t>(head)]);
    AttentionOutcome outcome = sparse_attention_outcome(q, spans, sink);
    if (options_.inverse_rope) {
      const std::vector<double> frequencies(frequencies_.begin(), frequencies_.end());
      rope_oracle(
          outcome.o, frequencies, positions_[static_cast<std::size_t>(query)], /*inverse=*/true);
    }
    return outcome;
  }
  void permute(const std::vector<int32_t>& order) {
    first_.permute(order);
    second_.permute(order);
    const std::vector<uint16_t> q = q_;
    const std::vector<int32_t> positions = positions_;
    const auto width = static_cast<std::size_t>(options_.heads) * kKvDims;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto from = static_cast<std::size_t>(order[i]);
      std::copy_n(q.begin() + static_cast<int64_t>(from * width),
                  width,
                  q_.begin() + static_cast<int64_t>(i * width));
      positions_[i] = positions[from];
    }
  }
  std::vector<float>& sink() { return sink_; }
  std::vector<uint16_t>& q() { return q_; }
  SceneRows& first() { return first_; }
  const SceneOptions& options() const { return options_; }

 private:
  SceneOptions options_;
  RandomValues random_;
  SceneRows first_;
  SceneRows second_;
  std::vector<uint16_t> q_;
  std::vector<float> sink_;
  std::vector<float> frequencies_;
  std::vector<int32_t> positions_;
  device::Buffer<uint16_t> device_q_;
  device::Buffer<float> device_sink_;
  device::Buffer<int32_t> device_positions_;
  device::Buffer<float> device_frequencies_;
  device::Buffer<uint16_t> o_;
  device::Buffer<float> lse_;
  device::Buffer<float> lse_with_sink_;
  device::Buffer<uint8_t> workspace_;
  SparseAttentionPlan plan_;
};

}  // namespace baleen::kernels::testing
