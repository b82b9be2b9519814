// One launch, roles by block index, 256 threads each: blocks of the latent come first, since their
// reader (wq_b) is next in the chain. Layers with a ratio-128 compressor launch clusters of eight
// blocks; a cluster pools one entry, and the other roles do not notice.

#include <type_traits>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/after_projection/compressor_roles.cuh"
#include "kernels/after_projection/token_roles.cuh"

namespace baleen::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kDenseClusters = 32;  // that share the entries of a ratio-128 compressor

/// First block of every role; a role without blocks has the same begin as the next.
struct Roles {
  int32_t kv = 0;
  int32_t weights = 0;
  int32_t main_pool = 0;
  int32_t index_pool = 0;
  int32_t main_ring = 0;
  int32_t index_ring = 0;
  int32_t dense_pool = 0;  // a multiple of the cluster size
  int32_t end = 0;
};

template <bool kDense>
__global__ void __launch_bounds__(kThreads, 2)
    after_projection_kernel(const __grid_constant__ AfterProjectionParams params, Roles roles) {
  // A pooled row, or the norm weights of eight index keys, or the dense exchange.
  __shared__ __align__(16)
      uint8_t shared[kDense ? sizeof(DenseShared) : kWarps * kIndexDims * sizeof(float)];
  static_assert(sizeof(PooledRow) <= kWarps * kIndexDims * sizeof(float));
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  ptx::release_successor();
  if (block < roles.kv) {
    const int32_t token = block * kWarps + warp;
    if (token < params.num_tokens) {
      if (params.latent.width == 4 * kLatentChunk) {
        latent_token<4>(params, token, true);
      } else {
        latent_token<6>(params, token, true);
      }
    }
    return;
  }
  if (block < roles.weights) {
    const int32_t token = (block - roles.kv) * kWarps + warp;
    if (token < params.num_tokens) {
      kv_token(params, token, true);
    }
    return;
  }
  if (block < roles.main_pool) {
    const int32_t token = (block - roles.weights) * kWarps + warp;
    if (token < params.num_tokens) {
      index_weights_token(params, token, true);
    }
    return;
  }
  ptx::wait_for_predecessor();
  if (block < roles.index_pool) {
    if constexpr (!kDense) {
      pool_entry_c4(params.main, block - roles.main_pool, *reinterpret_cast<PooledRow*>(shared));
    }
    return;
  }
  if (block < roles.main_ring) {
    const int32_t entry = (block - roles.index_pool) * kWarps + warp;
    if (entry < params.index.max_entries) {
      pool_index_key(params.index, entry, reinterpret_cast<float*>(shared) + warp * kIndexDims);
    }
    return;
  }
  if (block < roles.index_ring) {
    const int32_t index = block - roles.main_ring;
    if constexpr (kDense) {
      append_row<kThreads, kKvDims>(params.main_ring, index, thread);
    } else {
      append_row<kThreads, 2 * kKvDims>(params.main_ring, index, thread);
    }
    return;
  }
  if (block < roles.dense_pool) {
    const int32_t index = (block - roles.index_ring) * 4 + thread / 64;
    if (index < params.index_ring.max_writes) {
      append_row<64, 2 * kIndexDims>(params.index_ring, index, thread % 64);
    }
    return;
  }
  if constexpr (kDense) {
    const int32_t count = entry_count(params.main);
    const int32_t clusters = (roles.end - roles.dense_pool) / kDenseCluster;
    for (int32_t entry = (block - roles.dense_pool) / kDenseCluster; entry < count;
         entry += clusters) {
      pool_entry_c128(params.main, entry, *reinterpret_cast<DenseShared*>(shared));
    }
  }
}

int32_t blocks_for(bool present, int32_t items, int32_t per_block) {
  return present ? (items + per_block - 1) / per_block : 0;
}

void check(const AfterProjectionParams& p) {
  BALEEN_CHECK(p.num_tokens >= 0, "num_tokens={}", p.num_tokens);
  BALEEN_CHECK(p.latent.rows == nullptr || p.latent.width == 1024 || p.latent.width == 1536,
               "latent width={}",
               p.latent.width);
  BALEEN_CHECK(p.latent.stride % 8 == 0 && p.kv.stride % 8 == 0 && p.index_weights.stride % 2 == 0,
               "strides {} {} {}",
               p.latent.stride,
               p.kv.stride,
               p.index_weights.stride);
  BALEEN_CHECK(p.main.kind != CompressorKind::kIndex && p.main.kind == p.main_ring.kind,
               "kinds of the main compressor: {} {}",
               static_cast<int>(p.main.kind),
               static_cast<int>(p.main_ring.kind));
  BALEEN_CHECK(p.main_ring.max_writes <= p.num_tokens && p.index_ring.max_writes <= p.num_tokens,
               "writes {} {} of {} tokens",
               p.main_ring.max_writes,
               p.index_ring.max_writes,
               p.num_tokens);
}

template <bool kDense>
void launch_roles(const AfterProjectionParams& params, Roles roles, device::StreamHandle stream) {
  if (roles.end == 0) {
    return;
  }
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(roles.end)),
                  .block = dim3(kThreads),
                  .cluster = kDense ? kDenseCluster : 1U,
                  .programmatic = params.programmatic},
                 after_projection_kernel<kDense>,
                 params,
                 roles);
}

}  // namespace

void after_projection_sm90(const AfterProjectionParams& p, device::StreamHandle stream) {
  check(p);
  const bool dense = p.main.kind == CompressorKind::kC128;
  const bool pools = p.main.plan != nullptr && p.main.max_entries > 0;
  Roles roles;
  roles.kv = blocks_for(p.latent.rows != nullptr, p.num_tokens, kWarps);
  roles.weights = roles.kv + blocks_for(p.kv.rows != nullptr, p.num_tokens, kWarps);
  roles.main_pool =
      roles.weights + blocks_for(p.index_weights.rows != nullptr, p.num_tokens, kWarps);
  roles.index_pool = roles.main_pool + blocks_for(pools && !dense, p.main.max_entries, 1);
  roles.main_ring =
      roles.index_pool + blocks_for(p.index.plan != nullptr, p.index.max_entries, kWarps);
  roles.index_ring =
      roles.main_ring + blocks_for(p.main_ring.writes != nullptr, p.main_ring.max_writes, 1);
  roles.dense_pool =
      roles.index_ring + blocks_for(p.index_ring.writes != nullptr, p.index_ring.max_writes, 4);
  roles.end = roles.dense_pool;
  if (dense && pools) {
    roles.dense_pool = blocks_for(true, roles.dense_pool, kDenseCluster) * kDenseCluster;
    const int32_t clusters =
        p.main.max_entries < kDenseClusters ? p.main.max_entries : kDenseClusters;
    roles.end = roles.dense_pool + clusters * kDenseCluster;
    launch_roles<true>(p, roles, stream);
  } else if (dense) {  // ring writes of a ratio-128 layer without a pool
    roles.end = blocks_for(true, roles.end, kDenseCluster) * kDenseCluster;
    roles.dense_pool = roles.end;
    launch_roles<true>(p, roles, stream);
  } else {
    launch_roles<false>(p, roles, stream);
  }
}

}  // namespace baleen::kernels
