// Top-k over rows and lengths, with plain edges. Scores of one row stay in L2, as the kernel that
// made them leaves them; more rows rotate over more than L2. Distributions other than normal show
// what crowded thresholds cost.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/benching/kernel_bench.h"
#include "kernels/benching/peer_library.h"
#include "kernels/indexer_topk/indexer_topk.h"
#include "kernels/indexer_topk/score_samples.h"

namespace baleen::kernels {
namespace {

using benching::BenchContext;
using benching::BenchRow;
using benching::Ceiling;
using testing::ScoreKind;

/// Rows of one distribution in device memory: a pool of made rows, repeated.
class ScoreRows {
 public:
  ScoreRows(ScoreKind kind, int64_t count, int64_t rows) : count_(count), scores_(count * rows) {
    const int64_t made = std::min<int64_t>(rows, std::max<int64_t>(1, (1 << 20) / count));
    for (int64_t r = 0; r < made; ++r) {
      const std::vector<float> row =
          testing::make_scores(kind, count, static_cast<uint64_t>(r) + 1);
      BALEEN_CUDA_CHECK(
          cudaMemcpy(scores_.data() + r * count, row.data(), bytes(), cudaMemcpyDefault));
    }
    for (int64_t r = made; r < rows; ++r) {
      BALEEN_CUDA_CHECK(cudaMemcpy(scores_.data() + r * count,
                                   scores_.data() + r % made * count,
                                   bytes(),
                                   cudaMemcpyDefault));
    }
  }
  const float* row(int64_t r) const { return scores_.data() + r * count_; }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(float); }

  int64_t count_;
  device::Buffer<float> scores_;
};

struct Case {
  int64_t count;
  int32_t rows;
  int32_t k;
  ScoreKind kind = ScoreKind::kNormal;
};

/// Scores of the picks of the first row, best first.
std::vector<float> picked_scores(const float* row,
                                 int64_t count,
                                 const device::Buffer<int32_t>& picks,
                                 int32_t k) {
  std::vector<float> scores(static_cast<std::size_t>(count));
  BALEEN_CUDA_CHECK(cudaMemcpy(
      scores.data(), row, static_cast<std::size_t>(count) * sizeof(float), cudaMemcpyDefault));
  const std::vector<int32_t> entries = picks.to_host();
  std::vector<float> picked;
  for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) {
    const bool valid = entries[i] >= 0 && entries[i] < count;
    picked.push_back(valid ? scores[static_cast<std::size_t>(entries[i])]
                           : -std::numeric_limits<float>::infinity());
  }
  std::sort(picked.begin(), picked.end(), std::greater<>());
  return picked;
}

/// Public kernels on the same rows. Their order is free; the scores they pick are compared.
void measure_peers(BenchContext& bench,
                   const BenchRow& ours,
                   const ScoreRows& rows,
                   IndexerTopkParams params,
                   device::Buffer<int32_t>& picks,
                   int sets) {
  cudaStream_t stream = bench.stream().get();
  for (const benching::Peer<benching::PeerTopkCall>& peer :
       bench.peers().of<benching::PeerTopkCall>()) {
    benching::PeerTopkCall call{.scores = rows.row(0),
                                .lengths = params.lengths,
                                .indices = params.indices,
                                .score_stride = params.score_stride,
                                .max_entries = params.max_entries,
                                .num_rows = params.num_rows,
                                .k = params.k};
    device::Buffer<uint8_t> workspace(std::max<int64_t>(1, peer.workspace(&call)));
    call.workspace = workspace.data();
    call.workspace_bytes = workspace.count();
    params.scores = rows.row(0);
    const auto picked = [&] {
      bench.stream().synchronize();
      return picked_scores(rows.row(0), params.max_entries, picks, params.k);
    };
    launch_indexer_topk_sm90(
        params, plan_indexer_topk(params.max_entries, params.num_rows, params.k), stream);
    const std::vector<float> wanted = picked();
    if (peer.launch_planned(call, stream) != 0) {
      std::printf("%s: no row for %s\n", peer.name.c_str(), ours.row.c_str());
      continue;
    }
    if (picked() != wanted) {
      std::printf("%s: another result for %s\n", peer.name.c_str(), ours.row.c_str());
      continue;
    }
    BenchRow row = ours;
    row.implementation = peer.name;
    bench.measure(row, sets, [&](cudaStream_t on, int set) {
      call.scores = rows.row(int64_t{set} * params.num_rows);
      peer.launch(&call, on);
    });
  }
}

void measure(BenchContext& bench, const Case& shape, const IndexerTopkPlan* plan) {
  std::string name = "topk/n:" + std::to_string(shape.count) +
                     "/rows:" + std::to_string(shape.rows) + "/k:" + std::to_string(shape.k);
  if (shape.kind != ScoreKind::kNormal) {
    name += "/" + testing::score_kind_name(shape.kind);
  }
  if (plan != nullptr) {
    name += "/cluster:" + std::to_string(plan->cluster) +
            (plan->streamed ? "/streamed" : "/vectors:" + std::to_string(plan->vectors));
  }
  if (!bench.wants(name)) {
    return;
  }
  const int64_t bytes = shape.count * shape.rows * 4 + int64_t{shape.rows} * shape.k * 4;
  const int sets = shape.rows == 1 ? 2 : std::min(BenchContext::sets_for(bytes), 256);
  const ScoreRows rows(shape.kind, shape.count, int64_t{shape.rows} * sets);
  const auto lengths = device::Buffer<int32_t>::from_host(std::vector<int32_t>(
      static_cast<std::size_t>(shape.rows), static_cast<int32_t>(shape.count)));
  device::Buffer<int32_t> picks(int64_t{shape.rows} * shape.k);
  IndexerTopkParams params{.score_stride = shape.count,
                           .lengths = lengths.data(),
                           .indices = picks.data(),
                           .list_stride = shape.k,
                           .max_entries = shape.count,
                           .num_rows = shape.rows,
                           .k = shape.k};
  const IndexerTopkPlan chosen =
      plan != nullptr ? *plan : plan_indexer_topk(shape.count, shape.rows, shape.k);
  const BenchRow row{
      .row = name, .bytes = bytes, .ceiling = shape.rows == 1 ? Ceiling::kLatency : Ceiling::kRead};
  if (plan == nullptr && (shape.kind == ScoreKind::kNormal || shape.kind == ScoreKind::kSkewed)) {
    measure_peers(bench, row, rows, params, picks, sets);
  }
  bench.measure(row, sets, [&](cudaStream_t stream, int set) {
    params.scores = rows.row(int64_t{set} * shape.rows);
    launch_indexer_topk_sm90(params, chosen, stream);
  });
}

void run(BenchContext& bench) {
  for (const int32_t k : {512, 1024}) {
    for (const int32_t rows : {1, 4, 64, 256}) {
      for (const int64_t count : {1024, 8192, 32'768, 65'536, 262'144}) {
        measure(bench, {count, rows, k}, nullptr);
      }
    }
  }
  for (const int32_t rows : {1, 64}) {
    for (const ScoreKind kind : testing::all_score_kinds()) {
      if (kind != ScoreKind::kNormal) {
        measure(bench, {262'144, rows, 512, kind}, nullptr);
      }
    }
  }
  // Other ways of spreading the same row, for choosing the plan.
  for (const IndexerTopkPlan& plan : {IndexerTopkPlan{8, 8}, IndexerTopkPlan{16, 4}}) {
    for (const int32_t rows : {1, 4, 8, 64}) {
      measure(bench, {262'144, rows, 512}, &plan);
    }
  }
  for (const int32_t rows : {16, 32, 64, 128}) {
    for (const int64_t count : {131'072, 196'608, 262'144}) {
      const IndexerTopkPlan streamed{.cluster = 2, .vectors = 8, .streamed = true};
      const IndexerTopkPlan registers{.cluster = count == 131'072 ? 4 : 8, .vectors = 8};
      measure(bench, {count, rows, 512}, &streamed);
      measure(bench, {count, rows, 512}, &registers);
    }
  }
  for (const IndexerTopkPlan& plan : {IndexerTopkPlan{1, 8},
                                      IndexerTopkPlan{2, 4},
                                      IndexerTopkPlan{4, 2},
                                      IndexerTopkPlan{8, 1}}) {
    for (const int32_t rows : {1, 64}) {
      measure(bench, {32'768, rows, 512}, &plan);
    }
  }
  for (const IndexerTopkPlan& plan : {IndexerTopkPlan{1, 2}, IndexerTopkPlan{2, 1}}) {
    for (const int32_t rows : {1, 64, 256}) {
      measure(bench, {8192, rows, 512}, &plan);
    }
  }
}

BALEEN_KERNEL_BENCH("indexer_topk", run)

}  // namespace
}  // namespace baleen::kernels
