// Host side of the attention kernels: what is covered, how work is cut, and the choice of the
// kernel.

#include <algorithm>

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "kernels/sparse_attention/attention_few.h"
#include "kernels/sparse_attention/attention_join.cuh"
#include "kernels/sparse_attention/sparse_attention.h"

namespace baleen::kernels {

template <int kHeads>
void launch_attention_sm90(const SparseAttentionParams& params, device::StreamHandle stream);

namespace {

int32_t tiles_of(int32_t capacity) {
  return (capacity + kAttentionTileRows - 1) / kAttentionTileRows;
}

/// Shares of 64 heads find room in shared memory for one peer only.
int32_t largest_cluster(int32_t heads_per_block) {
  return heads_per_block == 64 ? 2 : kMaxCluster;
}

/// Clusters of blocks that fill a multiprocessor each: processor clusters have 16 or 18 of them, so
/// that larger clusters leave some idle.
int32_t clusters_at_once(int32_t cluster, int32_t num_multiprocessors) {
  constexpr int32_t kOf132[kMaxCluster] = {132, 66, 39, 30, 22, 17, 15, 15};
  return std::max(kOf132[cluster - 1] * num_multiprocessors / 132, 1);
}

/// From the start to the first tile, and a block's last steps.
double start_us(int32_t heads) {
  return heads == 64 ? 10.0 : heads == 32 ? 9.8 : heads == 16 ? 8.2 : 6.4;
}
double tile_us(int32_t heads) {
  return heads == 64 ? 2.15 : heads == 32 ? 2.24 : heads == 16 ? 1.72 : 1.64;
}
double exchange_us(int32_t cluster) {
  return cluster == 1 ? 0 : 0.4;
}
/// Every block reads its share of all clusters' outputs; blocks of 64 heads end from registers
/// where there is one cluster.
double join_us(int32_t heads, int32_t clusters) {
  if (clusters == 1) {
    return 0;
  }
  return heads == 64 ? 4.6 + 0.3 * clusters : 0.15 + 0.75 * clusters;
}

void check_source(const SparseAttentionSource& source) {
  const bool present = source.rows != nullptr || source.pages != nullptr;
  if (!present) {
    return;
  }
  BALEEN_CHECK(source.rows == nullptr || source.pages == nullptr, "a source is a list or dense");
  BALEEN_CHECK(source.capacity >= 0, "capacity={}", source.capacity);
  BALEEN_CHECK(source.pool.base != nullptr && source.pool.rows_per_page > 0 &&
                   source.pool.page_bytes % 16 == 0,
               "rows_per_page={} page_bytes={}",
               source.pool.rows_per_page,
               source.pool.page_bytes);
  BALEEN_CHECK(
      source.entries_per_page > 0 && (source.entries_per_page & (source.entries_per_page - 1)) == 0,
      "entries_per_page={}",
      source.entries_per_page);
}

}  // namespace

bool supports_sparse_attention(const SparseAttentionShape& shape) {
  return (shape.heads == 8 || shape.heads == 16 || shape.heads == 32 || shape.heads == 64 ||
          shape.heads == 128) &&
         shape.num_queries >= 0 && shape.num_queries <= 65535 && shape.first_capacity >= 0 &&
         shape.second_capacity >= 0;
}

SparseAttentionPlan plan_sparse_attention(const SparseAttentionShape& shape,
                                          AttentionMode mode,
                                          int32_t num_multiprocessors) {
  BALEEN_CHECK(supports_sparse_attention(shape), "heads={}", shape.heads);
  SparseAttentionPlan plan;
  plan.mode = mode;
  plan.max_queries = shape.num_queries;
  const int32_t queries = std::max(shape.num_queries, 1);
  if (mode == AttentionMode::kInvariant) {
    const int32_t parts =
        shape.second_is_dense
            ? std::max((shape.second_capacity + kAttentionPartRows - 1) / kAttentionPartRows, 1)
            : 1;
    plan.clusters = parts;
    plan.heads_per_block = std::min(shape.heads, 64);
    while (plan.heads_per_block > 8 &&
           static_cast<int64_t>(queries) * parts * (shape.heads / plan.heads_per_block) * 2 <=
               num_multiprocessors) {
      plan.heads_per_block /= 2;
    }
    return plan;
  }
  // The smallest estimate of microseconds wins; the constants were measured on an H200.
  const int32_t tiles = tiles_of(shape.first_capacity) + tiles_of(shape.second_capacity);
  double best = 0;
  for (int32_t heads = 8; heads <= std::min(shape.heads, 64); heads *= 2) {
    for (int32_t cluster = 1; cluster <= largest_cluster(heads); ++cluster) {
      for (int32_t clusters = 1; clusters <= kMaxClusters; ++clusters) {
        const int32_t parts = cluster * clusters;
        if (parts > std::max(tiles, 1)) {
          break;
        }
        const int64_t groups = static_cast<int64_t>(queries) * (shape.heads / heads) * clusters;
        const int32_t at_once = clusters_at_once(cluster, num_multiprocessors);
        const int64_t waves = (groups + at_once - 1) / at_once;
        const int32_t longest = (tiles + parts - 1) / parts;
        const double estimate =
            static_cast<double>(waves) *
                (start_us(heads) + longest * tile_us(heads) + exchange_us(cluster)) +
            join_us(heads, clusters);
        if (best == 0 || estimate < best) {
          best = estimate;
          plan.heads_per_block = heads;
          plan.cluster = cluster;
          plan.clusters = clusters;
        }
      }
    }
  }
  const FewCut few = best_few_cut(shape, num_multiprocessors);
  if (few.heads_per_block > 0 && few.us < best) {
    plan.few = true;
    plan.heads_per_block = few.heads_per_block;
    plan.cluster = few.cluster;
    plan.clusters = 1;
  }
  return plan;
}

std::size_t sparse_attention_workspace_bytes(const SparseAttentionShape& shape,
                                             const SparseAttentionPlan& plan) {
  if (plan.clusters == 1) {
    return 0;
  }
  const int64_t words = join_counters(plan, shape.heads / plan.heads_per_block) +
                        join_statistics(plan, shape.heads) + join_outputs(plan, shape.heads);
  return static_cast<std::size_t>(words) * sizeof(float);
}

void launch_sparse_attention(const SparseAttentionParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(
      supports_sparse_attention({.num_queries = params.num_queries, .heads = params.heads}),
      "num_queries={} heads={}",
      params.num_queries,
      params.heads);
  const SparseAttentionPlan& plan = params.plan;
  BALEEN_CHECK(
      plan.heads_per_block > 0 && params.heads % plan.heads_per_block == 0 &&
          (plan.few ? supports_few_plan(plan)
                    : plan.cluster >= 1 && plan.cluster <= largest_cluster(plan.heads_per_block)) &&
          plan.clusters >= 1 && plan.clusters <= kMaxClusters &&
          params.num_queries <= plan.max_queries,
      "heads_per_block={} cluster={} clusters={} max_queries={}",
      plan.heads_per_block,
      plan.cluster,
      plan.clusters,
      plan.max_queries);
  BALEEN_CHECK(plan.clusters == 1 || params.workspace != nullptr, "clusters={}", plan.clusters);
  BALEEN_CHECK(params.positions == nullptr || params.frequencies != nullptr,
               "positions need frequencies");
  BALEEN_CHECK(params.scale > 0, "scale={}", params.scale);
  check_source(params.first);
  check_source(params.second);
  if (params.num_queries == 0) {
    return;
  }
  if (plan.few) {
    return launch_few_attention(params, stream);
  }
  switch (plan.heads_per_block) {
    case 8:
      return launch_attention_sm90<8>(params, stream);
    case 16:
      return launch_attention_sm90<16>(params, stream);
    case 32:
      return launch_attention_sm90<32>(params, stream);
    case 64:
      return launch_attention_sm90<64>(params, stream);
    default:
      BALEEN_CHECK(false, "heads_per_block={}", plan.heads_per_block);
  }
}

}  // namespace baleen::kernels
