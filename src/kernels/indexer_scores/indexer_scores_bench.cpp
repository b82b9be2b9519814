// Index scores over batch, context and queries per request: with plain edges, and with run-ahead,
// where the keys of earlier steps are fetched before the predecessor's end; public kernels beside
// ours where one token asks.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/benching/kernel_bench.h"
#include "kernels/indexer_scores/indexer_scores.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels {
namespace {

using benching::BenchContext;
using benching::BenchRow;
using benching::Ceiling;

constexpr int64_t kMadePages = 4096;  // random pages; larger pools repeat them
constexpr int64_t kStrideStep = 256;  // of score rows; public kernels ask for it

struct Case {
  int32_t batch;
  int64_t entries;
  int32_t q;
};

/// `num_pages` pages of random keys, a batch's page tables over them, and its queries.
class Inputs {
 public:
  Inputs(const Case& shape, int sets)
      : pages_per_request_((shape.entries + kIndexPageEntries - 1) / kIndexPageEntries),
        num_pages_(pages_per_request_ * shape.batch * sets),
        pages_(num_pages_ * kIndexPageBytes),
        score_stride_((pages_per_request_ * kIndexPageEntries + kStrideStep - 1) / kStrideStep *
                      kStrideStep),
        scores_(int64_t{shape.batch} * shape.q * score_stride_) {
    testing::RandomValues random(3);
    const int64_t made = std::min(num_pages_, kMadePages);
    std::vector<uint8_t> page = random.e4m3_codes(kIndexPageBytes * 16, 16.0F);
    for (int64_t p = 0; p < 16; ++p) {
      for (int64_t i = 0; i < kIndexPageEntries; ++i) {
        const float scale = 0.01F + 0.001F * static_cast<float>(i);
        std::copy_n(reinterpret_cast<const uint8_t*>(&scale),
                    4,
                    page.begin() + p * kIndexPageBytes + kIndexPageEntries * kScoreDims + i * 4);
      }
    }
    const int64_t chunk = 16;
    for (int64_t p = 0; p < made; p += chunk) {
      copy(p, page.data(), std::min(chunk, num_pages_ - p));
    }
    for (int64_t p = made; p < num_pages_; p += made) {
      copy(p, pages_.data(), std::min(made, num_pages_ - p));
    }
    std::vector<int32_t> order(static_cast<std::size_t>(num_pages_));
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int32_t>(i);
      std::swap(order[i],
                order[static_cast<std::size_t>(random.integer(0, static_cast<int64_t>(i)))]);
    }
    table_ = device::Buffer<int32_t>::from_host(order);
    const int64_t rows = int64_t{shape.batch} * shape.q;
    queries_ =
        device::Buffer<uint8_t>::from_host(random.e4m3_codes(rows * kScoreHeads * kScoreDims));
    weights_ = device::Buffer<float>::from_host(random.normals(rows * kScoreHeads, 0.1F));
    lengths_ = device::Buffer<int32_t>::from_host(
        std::vector<int32_t>(static_cast<std::size_t>(rows), static_cast<int32_t>(shape.entries)));
    params = {.queries = queries_.data(),
              .head_weights = weights_.data(),
              .key_pages = pages_.data(),
              .num_pages = num_pages_,
              .page_table = table_.data(),
              .page_table_stride = pages_per_request_,
              .lengths = lengths_.data(),
              .scores = scores_.data(),
              .score_stride = score_stride_,
              .num_requests = shape.batch,
              .queries_per_request = shape.q};
  }

  IndexerScoresParams of_set(int set) const {
    IndexerScoresParams result = params;
    result.page_table += set * params.num_requests * pages_per_request_;
    return result;
  }
  const int32_t* lengths() const { return lengths_.data(); }

  IndexerScoresParams params;

 private:
  void copy(int64_t page, const uint8_t* from, int64_t count) {
    BALEEN_CUDA_CHECK(cudaMemcpy(pages_.data() + page * kIndexPageBytes,
                                 from,
                                 static_cast<std::size_t>(count * kIndexPageBytes),
                                 cudaMemcpyDefault));
  }

  int64_t pages_per_request_;
  int64_t num_pages_;
  device::Buffer<uint8_t> pages_;
  int64_t score_stride_;
  device::Buffer<int32_t> table_;
  device::Buffer<uint8_t> queries_;
  device::Buffer<float> weights_;
  device::Buffer<int32_t> lengths_;
  device::Buffer<float> scores_;
};

std::vector<float> first_scores(const IndexerScoresParams& params, int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
  BALEEN_CUDA_CHECK(cudaMemcpy(
      values.data(), params.scores, values.size() * sizeof(float), cudaMemcpyDeviceToHost));
  return values;
}

/// Both within the tensor core's error of each other, as a share of the largest score.
bool same_scores(const std::vector<float>& ours, const std::vector<float>& theirs) {
  float largest = 0;
  float difference = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    largest = std::max(largest, std::abs(ours[i]));
    difference =
        std::max(difference, std::isfinite(theirs[i]) ? std::abs(ours[i] - theirs[i]) : INFINITY);
  }
  return difference <= 2e-3F * largest;
}

/// Public kernels with plain edges, in the same run. Their plan of a step is left out; a row whose
/// scores differ from ours is not measured.
void measure_peers(
    BenchContext& bench, const Inputs& inputs, const BenchRow& ours, int64_t entries, int sets) {
  cudaStream_t stream = bench.stream().get();
  for (const benching::Peer<benching::PeerScoresCall>& peer :
       bench.peers().of<benching::PeerScoresCall>()) {
    const auto call_of = [&](int set) {
      const IndexerScoresParams params = inputs.of_set(set);
      return benching::PeerScoresCall{.queries = params.queries,
                                      .head_weights = params.head_weights,
                                      .key_pages = params.key_pages,
                                      .page_table = params.page_table,
                                      .lengths = params.lengths,
                                      .scores = params.scores,
                                      .num_pages = params.num_pages,
                                      .page_bytes = kIndexPageBytes,
                                      .page_table_stride = params.page_table_stride,
                                      .score_stride = params.score_stride,
                                      .num_requests = params.num_requests,
                                      .queries_per_request = params.queries_per_request};
    };
    benching::PeerScoresCall call = call_of(0);
    device::Buffer<uint8_t> workspace(peer.workspace(&call));
    call.workspace = workspace.data();
    call.workspace_bytes = workspace.count();
    launch_indexer_scores(inputs.of_set(0), stream);
    const std::vector<float> wanted = first_scores(inputs.of_set(0), entries);
    if (peer.launch_planned(call, stream) != 0) {
      std::printf("%s: no row for %s\n", peer.name.c_str(), ours.row.c_str());
      continue;
    }
    if (!same_scores(wanted, first_scores(inputs.of_set(0), entries))) {
      std::printf("%s: another result for %s\n", peer.name.c_str(), ours.row.c_str());
      continue;
    }
    BenchRow row = ours;
    row.implementation = peer.name;
    bench.measure(row, sets, [&](cudaStream_t on, int set) {
      benching::PeerScoresCall now = call_of(set);
      now.workspace = workspace.data();
      now.workspace_bytes = workspace.count();
      peer.launch(&now, on);
    });
  }
}

void measure(BenchContext& bench, const Case& shape, const std::vector<IndexerScoresPlan>& plans) {
  const std::string name = "logits/bs:" + std::to_string(shape.batch) +
                           "/entries:" + std::to_string(shape.entries) +
                           "/q:" + std::to_string(shape.q);
  if (!bench.wants(name)) {
    return;
  }
  const int64_t pairs = int64_t{shape.batch} * shape.q * shape.entries;
  const int64_t bytes = int64_t{shape.batch} * shape.entries * 132 + pairs * 4;
  const int sets = BenchContext::sets_for(bytes);
  const Inputs inputs(shape, sets);
  const double flop = static_cast<double>(pairs) * 2 * kScoreHeads * kScoreDims;
  const Ceiling ceiling = shape.q > 2 ? Ceiling::kFp8 : Ceiling::kRead;
  if (shape.q == 1) {
    measure_peers(bench,
                  inputs,
                  {.row = name, .bytes = bytes, .flop = flop, .ceiling = ceiling},
                  shape.entries,
                  sets);
  }
  for (const bool ahead : {false, true}) {
    const auto one = [&](const std::string& row, const IndexerScoresPlan& plan) {
      bench.measure({.row = row, .bytes = bytes, .flop = flop, .ceiling = ceiling},
                    sets,
                    [&](cudaStream_t stream, int set) {
                      IndexerScoresParams params = inputs.of_set(set);
                      params.programmatic = ahead;
                      params.stable_entries = ahead && shape.q == 1 ? inputs.lengths() : nullptr;
                      launch_indexer_scores_sm90(params, plan, stream);
                    });
    };
    const std::string full = name + (ahead ? "/run_ahead" : "");
    IndexerScoresParams typical = inputs.params;
    typical.stable_entries = ahead && shape.q == 1 ? inputs.lengths() : nullptr;
    one(full, plan_indexer_scores(typical));
    for (const IndexerScoresPlan& plan : plans) {
      one(full + "/blocks:" + std::to_string(plan.blocks_per_multiprocessor) +
              "/groups:" + std::to_string(plan.warp_groups) +
              "/stages:" + std::to_string(plan.stages) + (plan.lone ? "/lone" : ""),
          plan);
    }
  }
}

void run(BenchContext& bench) {
  measure(bench, {1, 262'144, 1}, {{2, 2, 6, true}, {2, 2, 8, true}, {2, 2, 8}});
  for (const int32_t q : {1, 2, 4}) {
    for (const int32_t batch : {1, 8, 64}) {
      for (const int64_t entries : {1024, 7500, 50'000, 262'144}) {
        const bool measured = batch == 1 && entries == 262'144 && q == 1;
        const bool large = batch == 64 && entries == 262'144 && q > 1;
        if (!measured && !large) {
          measure(bench, {batch, entries, q}, {});
        }
      }
    }
  }
}

BALEEN_KERNEL_BENCH("indexer_scores", run)

}  // namespace
}  // namespace baleen::kernels
