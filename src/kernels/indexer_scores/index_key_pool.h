#pragma once
// A random paged index-key cache with queries, for tests of the index scores: pages lie in random
// order, and every place that no query may see holds NaN. Host only.
//
//   IndexKeyPool pool({.lengths = {65, 0}, .queries_per_request = 2, .seed = 1});
//   double want = pool.score(row, entry, &magnitude);

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/indexer_scores/indexer_scores.h"
#include "kernels/indexer_scores/indexer_scores_oracle.h"
#include "kernels/testing/random_values.h"
#include "numerics/float8.h"

namespace baleen::kernels::testing {

enum class KeyKind { kNormal, kFp4Valued, kZero };

struct IndexKeyPoolShape {
  std::vector<int32_t>
      lengths;  // of the last query of each request; earlier ones see one less each
  int32_t queries_per_request = 1;
  uint64_t seed = 1;
  KeyKind keys = KeyKind::kNormal;
  int64_t most_pages = 1 << 20;  // distinct pages; longer requests meet pages again
};

class IndexKeyPool {
 public:
  explicit IndexKeyPool(const IndexKeyPoolShape& shape) : q(shape.queries_per_request) {
    RandomValues random(shape.seed);
    requests = static_cast<int32_t>(shape.lengths.size());
    int64_t used = 0;
    for (const int32_t length : shape.lengths) {
      const int64_t seen = (std::max(length, 0) + 63) / 64;
      table_stride = std::max(table_stride, seen + 2);
      used += seen;
    }
    num_pages = std::min(used, shape.most_pages) + 3;
    pages.assign(static_cast<std::size_t>(num_pages * kIndexPageBytes), 0xFF);
    std::vector<int32_t> order(static_cast<std::size_t>(num_pages));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i],
                order[static_cast<std::size_t>(random.integer(0, static_cast<int64_t>(i)))]);
    }
    table.assign(static_cast<std::size_t>(requests * table_stride),
                 0x7FFFFFF0);  // must not be used
    std::vector<int32_t> filled(static_cast<std::size_t>(num_pages), 0);
    std::size_t next = 0;
    for (int32_t r = 0; r < requests; ++r) {
      const int32_t last = shape.lengths[static_cast<std::size_t>(r)];
      for (int32_t j = 0; j < q; ++j) {
        lengths.push_back(last - (q - 1 - j));
      }
      for (int32_t first = 0; first < last; first += 64) {
        const int32_t id = order[next++ % static_cast<std::size_t>(num_pages - 3)];
        table[static_cast<std::size_t>(r * table_stride + first / 64)] = id;
        int32_t& entries = filled[static_cast<std::size_t>(id)];
        if (entries < std::min(64, last - first)) {
          entries = std::min(64, last - first);
          fill_page(id, entries, shape.keys, random);
        }
      }
    }
    const int64_t rows = int64_t{requests} * q;
    queries.resize(static_cast<std::size_t>(rows * kScoreHeads * kScoreDims));
    for (uint8_t& code : queries) {
      code = shape.keys == KeyKind::kFp4Valued ? fp4_code(random)
                                               : numerics::e4m3_from_float(random.normal(2.0F));
    }
    head_weights = random.normals(rows * kScoreHeads, 0.1F);  // of both signs
  }

  /// The oracle's score before rounding; `magnitude` becomes the sum of |a_h| * relu, scaled alike.
  double score(int64_t row, int64_t entry, double* magnitude) const {
    const int32_t id =
        table[static_cast<std::size_t>(row / q * table_stride + entry / kIndexPageEntries)];
    const uint8_t* page = pages.data() + id * kIndexPageBytes;
    const int64_t place = entry % kIndexPageEntries;
    std::vector<double> key(kScoreDims);
    for (int64_t i = 0; i < kScoreDims; ++i) {
      key[static_cast<std::size_t>(i)] =
          static_cast<double>(numerics::e4m3_to_float(page[place * kScoreDims + i]));
    }
    float scale;
    std::memcpy(&scale, page + kIndexPageEntries * kScoreDims + place * 4, 4);
    std::vector<double> query(kScoreHeads * kScoreDims);
    for (std::size_t i = 0; i < query.size(); ++i) {
      query[i] = decoded_[queries[static_cast<std::size_t>(row) * query.size() + i]];
    }
    std::vector<double> weights(kScoreHeads);
    std::vector<double> sizes(kScoreHeads);
    for (std::size_t h = 0; h < weights.size(); ++h) {
      weights[h] = static_cast<double>(
          head_weights[static_cast<std::size_t>(row) * static_cast<std::size_t>(kScoreHeads) + h]);
      sizes[h] = std::fabs(weights[h]);
    }
    *magnitude = static_cast<double>(scale) * indexer_score_oracle(query, key, sizes, false);
    return static_cast<double>(scale) * indexer_score_oracle(query, key, weights, false);
  }

  int32_t requests = 0;
  int32_t q = 1;
  int64_t num_pages = 0;
  int64_t table_stride = 1;
  std::vector<uint8_t> pages;
  std::vector<int32_t> table;
  std::vector<int32_t> lengths;  // [requests * q]
  std::vector<uint8_t> queries;
  std::vector<float> head_weights;

 private:
  static uint8_t fp4_code(RandomValues& random) {
    static const float values[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    const float value = values[random.integer(0, 7)];
    return numerics::e4m3_from_float(random.integer(0, 1) == 0 ? value : -value);
  }

  void fill_page(int32_t id, int32_t entries, KeyKind kind, RandomValues& random) {
    uint8_t* page = pages.data() + id * kIndexPageBytes;
    for (int64_t i = 0; i < entries * kScoreDims; ++i) {
      page[i] = kind == KeyKind::kZero        ? uint8_t{0}
                : kind == KeyKind::kFp4Valued ? fp4_code(random)
                                              : numerics::e4m3_from_float(random.normal(16.0F));
    }
    for (int64_t i = 0; i < entries; ++i) {
      const float scale =
          kind == KeyKind::kFp4Valued ? 0.25F : 0.01F * (1.0F + std::fabs(random.normal()));
      std::memcpy(page + kIndexPageEntries * kScoreDims + i * 4, &scale, 4);
    }
  }

  std::vector<double> decoded_ = [] {
    std::vector<double> all(256);
    for (int code = 0; code < 256; ++code) {
      all[static_cast<std::size_t>(code)] =
          static_cast<double>(numerics::e4m3_to_float(static_cast<uint8_t>(code)));
    }
    return all;
  }();
};

}  // namespace baleen::kernels::testing
