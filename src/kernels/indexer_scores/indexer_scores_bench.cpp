// Index scores over batch, context and queries per request: with plain edges, and with run-ahead,
// where the keys of earlier steps are fetched before the predecessor's end.
#include <algorithm>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/benching/kernel_bench.h"
#include "kernels/indexer_scores/indexer_scores.h"
#include "kernels/testing/random_values.h"

namespace baleen::kernels {
namespace {

using benching::BenchContext;
using benching::Ceiling;

constexpr int64_t kMadePages = 4096;  // random pages; larger pools repeat them

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
        scores_(int64_t{shape.batch} * shape.q * pages_per_request_ * kIndexPageEntries) {
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
              .score_stride = pages_per_request_ * kIndexPageEntries,
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
  device::Buffer<int32_t> table_;
  device::Buffer<uint8_t> queries_;
  device::Buffer<float> weights_;
  device::Buffer<int32_t> lengths_;
  device::Buffer<float> scores_;
};

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
      one(full + "/blocks:" + std::to_string(plan.blocks_per_multiprocessor) + "/groups:" +
              std::to_string(plan.warp_groups) + "/stages:" + std::to_string(plan.stages),
          plan);
    }
  }
}

void run(BenchContext& bench) {
  measure(bench, {1, 262'144, 1}, {{2, 2, 4}, {2, 2, 8}});
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
