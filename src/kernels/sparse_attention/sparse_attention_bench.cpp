// Decode and verify attention against the attainable read rate: heads x batch x kind of layer x
// drafted tokens. Inputs are random rows scattered over pools larger than the L2; the plan is
// given, joining is inside.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/benching/kernel_bench.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels {
namespace {

using benching::BenchContext;
using benching::Ceiling;

constexpr int32_t kMultiprocessors = 132;
constexpr int64_t kPoolRows = 262'144;  // 153 MB
constexpr int64_t kMostRows = 700'000;  // visited by one launch

/// The arguments one after another.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream joined;
  (joined << ... << parts);
  return joined.str();
}

struct Layer {
  std::string name;
  int32_t first = 128;
  int32_t second = 0;
  bool dense = false;
};

/// A pool of random rows in pages of 64, larger than the L2; every page is different.
class Pool {
 public:
  Pool() {
    testing::RandomValues random(11);
    const int64_t pages = kPoolRows / 64;
    std::vector<uint8_t> page(static_cast<std::size_t>(kv_page_bytes(64)));
    const KvPoolView host{.base = nullptr, .page_bytes = kv_page_bytes(64), .rows_per_page = 64};
    for (int32_t row = 0; row < 64; ++row) {
      for (int i = 0; i < kKvNopeDims; ++i) {
        page[static_cast<std::size_t>(kv_value_offset(host, row) + i)] =
            numerics::e4m3_from_float(random.normal(1.5F));
      }
      for (int i = 0; i < kKvRopeDims; ++i) {
        const uint16_t bits = numerics::bf16_from_float(random.normal());
        const auto at = static_cast<std::size_t>(kv_value_offset(host, row) + kKvNopeDims + 2 * i);
        page[at] = static_cast<uint8_t>(bits & 0xFF);
        page[at + 1] = static_cast<uint8_t>(bits >> 8);
      }
      for (int i = 0; i < kKvScales; ++i) {
        page[static_cast<std::size_t>(kv_scale_offset(host, row) + i)] =
            static_cast<uint8_t>(random.integer(125, 128));
      }
    }
    std::vector<uint8_t> all;
    all.reserve(static_cast<std::size_t>(pages) * page.size());
    for (int64_t i = 0; i < pages; ++i) {
      all.insert(all.end(), page.begin(), page.end());
      std::rotate(page.begin(), page.begin() + kKvValueBytes, page.begin() + 64 * kKvValueBytes);
    }
    bytes_ = device::Buffer<uint8_t>::from_host(all);
  }
  KvPoolView view() {
    return {.base = bytes_.data(), .page_bytes = kv_page_bytes(64), .rows_per_page = 64};
  }

 private:
  device::Buffer<uint8_t> bytes_;
};

/// Queries, lists and outputs of one row of the table.
class Inputs {
 public:
  Inputs(const KvPoolView& pool, const Layer& layer, int32_t heads, int32_t queries, int sets)
      : pool_(pool), layer_(layer), heads_(heads), queries_(queries) {
    testing::RandomValues random(12);
    const std::vector<uint16_t> q =
        random.bf16_normals(static_cast<int64_t>(queries) * heads * kKvDims);
    for (int set = 0; set < sets; ++set) {
      q_.push_back(device::Buffer<uint16_t>::from_host(q));
    }
    sink_ = device::Buffer<float>::from_host(random.normals(heads));
    const int64_t second_stride = layer.dense ? (layer.second + 1) / 2 : layer.second;
    std::vector<int32_t> first;
    std::vector<int32_t> second;
    for (int64_t i = 0; i < static_cast<int64_t>(sets) * queries * layer.first; ++i) {
      first.push_back(static_cast<int32_t>(random.integer(0, kPoolRows - 1)));
    }
    for (int64_t i = 0; i < static_cast<int64_t>(sets) * queries * second_stride; ++i) {
      second.push_back(
          static_cast<int32_t>(random.integer(0, (layer.dense ? kPoolRows / 2 : kPoolRows) - 1)));
    }
    first_ = device::Buffer<int32_t>::from_host(first);
    second_ = device::Buffer<int32_t>::from_host(second);
    for (int set = 0; set < sets; ++set) {
      outputs_.emplace_back(static_cast<int64_t>(queries) * heads * kKvDims);
    }
  }
  SparseAttentionShape shape() const {
    return {.num_queries = queries_,
            .heads = heads_,
            .first_capacity = layer_.first,
            .second_capacity = layer_.second,
            .second_is_dense = layer_.dense};
  }
  SparseAttentionParams params(const SparseAttentionPlan& plan, int set) {
    const auto bytes = static_cast<int64_t>(sparse_attention_workspace_bytes(shape(), plan));
    if (workspace_.count() < bytes) {
      workspace_ = device::Buffer<uint8_t>(bytes);
    }
    SparseAttentionParams params;
    params.q = q_[static_cast<std::size_t>(set)].data();
    params.first = {.pool = pool_,
                    .rows = first_.data() + static_cast<int64_t>(set) * queries_ * layer_.first,
                    .stride = layer_.first,
                    .capacity = layer_.first};
    if (layer_.second > 0) {
      const int64_t stride = layer_.dense ? (layer_.second + 1) / 2 : layer_.second;
      const int32_t* table = second_.data() + set * queries_ * stride;
      params.second = {.pool = pool_,
                       .rows = layer_.dense ? nullptr : table,
                       .pages = layer_.dense ? table : nullptr,
                       .stride = stride,
                       .capacity = layer_.second,
                       .entries_per_page = 2};
    }
    params.sink = sink_.data();
    params.o = outputs_[static_cast<std::size_t>(set)].data();
    params.workspace = workspace_.data();
    params.num_queries = queries_;
    params.heads = heads_;
    params.plan = plan;
    return params;
  }
  void clear_workspace() { workspace_.fill_bytes(0); }
  std::vector<uint16_t> output(int set, const device::Stream& stream) const {
    stream.synchronize();
    return outputs_[static_cast<std::size_t>(set)].to_host();
  }
  int64_t bytes() const {
    const int64_t rows = layer_.first + layer_.second;
    return queries_ * (rows * (kKvValueBytes + kKvScaleBytes) + 4 * heads_ * kKvDims);
  }
  double flop() const { return 4.0 * queries_ * heads_ * kKvDims * (layer_.first + layer_.second); }

 private:
  KvPoolView pool_;
  Layer layer_;
  int32_t heads_;
  int32_t queries_;
  std::vector<device::Buffer<uint16_t>> q_;
  device::Buffer<float> sink_;
  device::Buffer<int32_t> first_;
  device::Buffer<int32_t> second_;
  std::vector<device::Buffer<uint16_t>> outputs_;
  device::Buffer<uint8_t> workspace_;
};

/// What a public kernel needs beside our inputs: lists instead of pages, padded to whole tiles.
class PeerInputs {
 public:
  PeerInputs(const SparseAttentionParams& params,
             const benching::Peer<benching::PeerAttentionCall>& peer)
      : lse_(static_cast<int64_t>(params.num_queries) * params.heads) {
    call_ = {.q = params.q,
             .first_pool = params.first.pool.base,
             .second_pool = params.second.pool.base,
             .first_rows = params.first.rows,
             .sink = params.sink,
             .o = params.o,
             .lse = lse_.data(),
             .page_bytes = params.first.pool.page_bytes,
             .rows_per_page = params.first.pool.rows_per_page,
             .pages = static_cast<int32_t>(kPoolRows / params.first.pool.rows_per_page),
             .first_capacity = params.first.capacity,
             .second_capacity = (params.second.capacity + 63) / 64 * 64,
             .queries = params.num_queries,
             .heads = params.heads,
             .scale = params.scale};
    workspace_ = device::Buffer<uint8_t>(peer.workspace(&call_));
    call_.workspace = workspace_.data();
    call_.workspace_bytes = workspace_.count();
  }
  /// Adds the lists of one set of inputs.
  void add_set(const SparseAttentionParams& params) {
    const SparseAttentionSource& source = params.second;
    std::vector<int32_t> rows;
    if (source.capacity > 0) {
      const int64_t count = params.num_queries * source.stride;
      std::vector<int32_t> table(static_cast<std::size_t>(count));
      BALEEN_CUDA_CHECK(cudaMemcpy(table.data(),
                                   source.pages != nullptr ? source.pages : source.rows,
                                   static_cast<std::size_t>(count) * sizeof(int32_t),
                                   cudaMemcpyDeviceToHost));
      for (int32_t query = 0; query < params.num_queries; ++query) {
        for (int32_t slot = 0; slot < call_.second_capacity; ++slot) {
          const int32_t per_page = source.pages != nullptr ? source.entries_per_page : 1;
          const auto at = static_cast<std::size_t>(query * source.stride + slot / per_page);
          rows.push_back(slot >= source.capacity ? -1 : table[at] * per_page + slot % per_page);
        }
      }
    }
    lists_.push_back(device::Buffer<int32_t>::from_host(rows));
  }
  benching::PeerAttentionCall call(const SparseAttentionParams& params, int set) const {
    benching::PeerAttentionCall call = call_;
    call.q = params.q;
    call.first_rows = params.first.rows;
    call.second_rows = lists_[static_cast<std::size_t>(set)].data();
    call.o = params.o;
    return call;
  }

 private:
  benching::PeerAttentionCall call_;
  device::Buffer<float> lse_;
  device::Buffer<uint8_t> workspace_;
  std::vector<device::Buffer<int32_t>> lists_;
};

/// Largest difference of two outputs, and whether it is a rounding of theirs.
bool same_outputs(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
  double worst = 0;
  double square = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(numerics::bf16_to_float(a[i]));
    const auto y = static_cast<double>(numerics::bf16_to_float(b[i]));
    worst = std::max(worst, std::isfinite(y) ? std::abs(x - y) : 1e30);
    square += x * x;
  }
  return worst <= 0.2 * std::sqrt(square / static_cast<double>(a.size()));
}

/// Public kernels for a row of one query token per request, in the same run. Their plan of a step
/// is left out; a row whose output differs from ours is not measured.
void measure_peers(BenchContext& bench, Inputs& inputs, const std::string& row, int sets) {
  for (const benching::Peer<benching::PeerAttentionCall>& peer :
       bench.peers().of<benching::PeerAttentionCall>()) {
    const SparseAttentionPlan plan =
        plan_sparse_attention(inputs.shape(), AttentionMode::kFast, kMultiprocessors);
    SparseAttentionParams first = inputs.params(plan, 0);
    inputs.clear_workspace();
    PeerInputs theirs(first, peer);
    for (int set = 0; set < sets; ++set) {
      theirs.add_set(inputs.params(plan, set));
    }
    cudaStream_t stream = bench.stream().get();
    launch_sparse_attention(first, stream);
    const std::vector<uint16_t> wanted = inputs.output(0, bench.stream());
    const benching::PeerAttentionCall call = theirs.call(first, 0);
    if (peer.launch_planned(call, stream) != 0) {
      std::printf("%s: no row for %s\n", peer.name.c_str(), row.c_str());
      continue;
    }
    if (!same_outputs(wanted, inputs.output(0, bench.stream()))) {
      std::printf("%s: another result for %s\n", peer.name.c_str(), row.c_str());
      continue;
    }
    bench.measure({.row = row,
                   .implementation = peer.name,
                   .mode = "-",
                   .bytes = inputs.bytes(),
                   .flop = inputs.flop(),
                   .ceiling = Ceiling::kRead},
                  sets,
                  [&](cudaStream_t on, int set) {
                    const benching::PeerAttentionCall now =
                        theirs.call(inputs.params(plan, set), set);
                    peer.launch(&now, on);
                  });
  }
}

void measure(BenchContext& bench,
             Inputs& inputs,
             const SparseAttentionPlan& plan,
             const std::string& row,
             const std::string& mode,
             int sets) {
  (void)inputs.params(plan, 0);  // allocates the workspace
  inputs.clear_workspace();
  bench.measure({.row = row,
                 .mode = mode,
                 .bytes = inputs.bytes(),
                 .flop = inputs.flop(),
                 .ceiling = Ceiling::kRead},
                sets,
                [&](cudaStream_t stream, int set) {
                  launch_sparse_attention(inputs.params(plan, set), stream);
                });
}

const std::vector<Layer>& layers() {
  static const std::vector<Layer> kLayers = {{"swa", 128, 0, false},
                                             {"c4", 128, 512, false},
                                             {"c128@30K", 128, 234, true},
                                             {"c128@900K", 128, 7031, true}};
  return kLayers;
}

void run(BenchContext& bench) {
  Pool pool;
  for (const Layer& layer : layers()) {
    for (const int32_t heads : {16, 32, 64, 128}) {
      for (const int32_t batch : {1, 8, 64, 256}) {
        for (const int32_t drafted : {1, 4}) {
          const std::string row = text(
              "attention/decode/", layer.name, "/heads:", heads, "/bs:", batch, "/q:", drafted);
          if (!bench.wants(row)) {
            continue;
          }
          const int32_t queries = batch * drafted;
          if (static_cast<int64_t>(queries) * (layer.first + layer.second) > kMostRows) {
            continue;  // seconds per row, and no other bound than at the batch before
          }
          const int64_t row_bytes =
              static_cast<int64_t>(queries) * (layer.first + layer.second) * 584;
          const int sets = BenchContext::sets_for(row_bytes);
          Inputs inputs(pool.view(), layer, heads, queries, sets);
          for (const AttentionMode mode : {AttentionMode::kFast, AttentionMode::kInvariant}) {
            measure(bench,
                    inputs,
                    plan_sparse_attention(inputs.shape(), mode, kMultiprocessors),
                    row,
                    mode == AttentionMode::kFast ? "fast" : "invariant",
                    sets);
          }
          if (drafted == 1) {
            measure_peers(bench, inputs, row, sets);
          }
        }
      }
    }
  }
}

BALEEN_KERNEL_BENCH("sparse_attention", run)

}  // namespace
}  // namespace baleen::kernels
