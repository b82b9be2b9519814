// One cluster of blocks per group of a few tokens; a block owns whole quantisation blocks of 128
// columns of all four streams. Its slice of fn comes into shared memory by tiled copies before the
// dependency wait (plain loads would keep too few bytes in flight for one multiprocessor, and small
// bulk copies take 55 cycles each to issue) and serves every token of the group, and of later
// groups.
//
//   fn -> shared | wait | new streams -> shared tile | 24 partial dots per token -> push to peers
//   -> pre -> u, sum of u^2 -> push -> norm, quantise, store;   one warp does Sinkhorn meanwhile.
//
// Few tokens leave most of the card idle: then a group has two clusters (kSplit). Both make the new
// streams; the first has the rows of fn for pre and post and makes the output, the second has those
// of comb and does Sinkhorn. They exchange nothing, so none of them may write what the other reads.
//
// Exchanges are one-way pushes (st.async) that the receiver awaits on its own barrier. Orders of
// summation: a lane walks four columns of streams 0 to 3 with FMA; lanes at distance 8, 4, 2, 1;
// the groups of 64 columns of a block ascending; blocks of the cluster as a balanced tree. Square
// sums: balanced tree inside a quantisation block, blocks ascending, cluster as a tree.

#include <algorithm>

#include "base/check.h"
#include "device/launch.h"
#include "device/resident_clusters.h"
#include "device/tensor_map.h"
#include "kernels/cache_entry/row_math.cuh"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/hyper_connection/hyper_connection_arena.cuh"
#include "kernels/hyper_connection/hyper_connection_dots.cuh"
#include "kernels/hyper_connection/hyper_connection_outputs.cuh"
#include "kernels/hyper_connection/hyper_connection_post.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/convert.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/push_to_peer.cuh"
#include "kernels/ptx/read_only_load.cuh"
#include "kernels/ptx/remote_arrive.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/sinkhorn/sinkhorn.cuh"

namespace baleen::kernels {
namespace hyper_connection {
namespace {

/// kMany: a cluster walks several groups of tokens; without, the loop and what it keeps alive are
/// gone. kSplit: see above.
template <int kWidth, bool kMany, bool kSplit>
__global__ void __launch_bounds__(kThreads, 1)
    hc_fused_kernel(const __grid_constant__ HcFusedParams p,
                    const __grid_constant__ CUtensorMap fn_map,
                    int tokens_per_group) {
  using Shared = Arena<kWidth>;
  constexpr int kAllBlocks = Shared::kAllBlocks;
  static_assert(kThreads >= Shared::kTokens * (kCluster + kMixFours));
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  Shared& s = *reinterpret_cast<Shared*>(shared_bytes);

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int rank = static_cast<int>(ptx::cluster_rank());
  const int first_block = rank * kAllBlocks / kCluster;
  const int blocks = kAllBlocks % kCluster == 0 ? Shared::kBlocks
                                                : (rank + 1) * kAllBlocks / kCluster - first_block;
  const int row_group = warp / kWarpsPerRows;
  const int cluster = static_cast<int>(blockIdx.x) / kCluster;
  const bool second = kSplit && cluster % 2 != 0;
  const int first_row_group = second ? kHcHeadRows * 2 / kRowsPerWarp : 0;
  const int end_row_group =
      p.rows != kHcRows || (kSplit && !second) ? kHcHeadRows * 2 / kRowsPerWarp : kRowGroups;

  const int num_groups = kMany ? (p.num_tokens + tokens_per_group - 1) / tokens_per_group : 0;
  const int num_clusters = static_cast<int>(gridDim.x) / kCluster;
  int group = kSplit ? cluster / 2 : cluster;
  const auto tokens_of = [&](int g) {
    const int left = p.num_tokens - g * tokens_per_group;
    return left < tokens_per_group ? left : tokens_per_group;
  };
  const auto expect = [&](int count) {  // by one thread, before any peer can push for that group
    const bool owner = p.rows == kHcRows && rank < count;  // block t does token t's Sinkhorn
    const int fours = !kSplit ? kMixFours : second ? kMixFours - 1 : 1;
    const int all = second ? 0 : count * 20;                    // pre and the square sum
    const int own = owner ? fours * 16 + (second ? 4 : 0) : 0;  // mixes; the square sum alone
    ptx::barrier_expect_bytes(&s.first, static_cast<uint32_t>(kCluster * (all + own)));
    ptx::barrier_expect_bytes(&s.second, static_cast<uint32_t>(second ? 0 : count * kCluster * 4));
  };
  // Twelve bytes are no bulk copy: requested here, put down after the streams' inputs have come.
  const int scale_index = thread - (kThreads - 32);
  const bool has_scale = scale_index >= 0 && scale_index < (p.rows == kHcRows ? 3 : 1);
  float scale = 0.0F;
  if (has_scale) {
    scale = ptx::load_static_one(p.scale + scale_index);
  }
  const bool requester = scale_index == 0;
  if (requester) {
    ptx::barrier_init(&s.constants_full, 1);
    for (int g = 0; g < kRowGroups; ++g) {
      ptx::barrier_init(&s.fn_full[g], 1);
    }
    ptx::barrier_init(&s.first, 1);
    ptx::barrier_init(&s.second, 1);
    ptx::fence_barrier_init();
    expect(tokens_of(group));
  }
  const auto request_constants = [&] {  // in the order of their use; rows past the last read zero
    const auto line_bytes = static_cast<uint32_t>(blocks * kHcQuantDims * sizeof(float));
    const auto base_bytes = static_cast<uint32_t>(p.rows * sizeof(float));
#pragma unroll 1
    for (int g = first_row_group; g < end_row_group; ++g) {
      ptx::barrier_expect_bytes(&s.fn_full[g], static_cast<uint32_t>(blocks * sizeof(s.fn[0][0])));
#pragma unroll 1
      for (int b = 0; b < blocks; ++b) {
        ptx::tensor_load_3d(s.fn[g][b],
                            &fn_map,
                            (first_block + b) * kHcQuantDims,
                            0,
                            g * kRowsPerWarp,
                            &s.fn_full[g]);
      }
    }
    ptx::barrier_expect_bytes(&s.constants_full, line_bytes + base_bytes);
    ptx::bulk_load(s.base, p.base, base_bytes, &s.constants_full);
    ptx::bulk_load(
        s.norm_weight, p.norm_weight + first_block * kHcQuantDims, line_bytes, &s.constants_full);
  };
  if (requester && p.programmatic) {
    request_constants();
  }
  __syncwarp();
  ptx::cluster_arrive_relaxed();  // the barriers are published by the fence at their init
  ptx::wait_for_predecessor();
  ptx::release_successor();

  uint32_t parity = 0;
  for (bool begun = false;; begun = true) {
    const int first_token = group * tokens_per_group;
    const int count = tokens_of(group);

    // New streams: a warp takes one token's block of 128 columns at a time, a lane four columns. At
    // most two of them per warp: both are in flight together. Coefficients come by way of shared
    // memory.
    const auto has_item = [&](int item) {
      return item < count * Shared::kBlocks && item % Shared::kBlocks < blocks;
    };
    PostInput inputs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int item = warp + i * kWarps;
      if (has_item(item)) {
        load_post_input<kWidth>(
            p,
            first_token + item / Shared::kBlocks,
            static_cast<int64_t>(first_block + item % Shared::kBlocks) * kHcQuantDims + 4 * lane,
            inputs[i]);
      }
    }
    if (p.post != nullptr && thread < count * (1 + kHcStreams)) {
      const int t = thread / (1 + kHcStreams);
      const int four = thread % (1 + kHcStreams);
      const int64_t token = first_token + t;
      s.coefficients[t][four] = *reinterpret_cast<const float4*>(
          four == 0 ? p.post + token * kHcStreams
                    : p.comb + (token * kHcStreams + four - 1) * kHcStreams);
    }
    // Without a predecessor to hide behind, the streams' few bytes go before fn's many.
    if (requester && !begun && !p.programmatic) {
      request_constants();
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int item = warp + i * kWarps;
      if (has_item(item)) {
        const int t = item / Shared::kBlocks;
        const int b = item % Shared::kBlocks;
        const int64_t token = first_token + t;
        const int64_t column = static_cast<int64_t>(first_block + b) * kHcQuantDims + 4 * lane;
        uint2 x[kHcStreams];
        new_streams<kWidth>(p, token, column, inputs[i], s.coefficients[t], x);
        float values[4 * kHcStreams];
#pragma unroll
        for (int k = 0; k < kHcStreams; ++k) {
          if (p.streams != nullptr && !second) {
            *reinterpret_cast<uint2*>(p.streams + (token * kHcStreams + k) * kWidth + column) =
                x[k];
          }
          store_four(&s.x[t][k][b * kHcQuantDims + 4 * lane], x[k]);
          float four[4];
          unpack(x[k], four);
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            values[4 * k + c] = four[c];
          }
        }
        const float square = warp_sum(square_tree(values));
        if (lane == 0) {
          s.square_part[t][b] = square;
        }
      }
    }
    if (has_scale && !begun) {
      s.scale[scale_index] = scale;
    }
    __syncthreads();

    // 24 dots per token: a warp has eight rows of fn and 64 columns of the four streams.
    const bool has_rows = row_group >= first_row_group && row_group < end_row_group;
    if (has_rows) {
      ptx::barrier_wait(&s.fn_full[row_group], 0);
    }
    const int half_row = lane / 16 * kRowsPerLane;
    const int first_row = row_group * kRowsPerWarp + half_row;
#pragma unroll 1
    for (int g = warp % kWarpsPerRows; has_rows && g < Shared::kGroups; g += kWarpsPerRows) {
      const bool exists = g * kGroupColumns < blocks * kHcQuantDims && first_row < p.rows;
      const int column = g * kGroupColumns + 4 * (lane % 16);
      float4 fn[kRowsPerLane][kHcStreams];
#pragma unroll
      for (int r = 0; r < kRowsPerLane; ++r) {
#pragma unroll
        for (int v = 0; v < kHcStreams; ++v) {
          fn[r][v] = *reinterpret_cast<const float4*>(
              &s.fn[row_group][column / kHcQuantDims][half_row + r][v][column % kHcQuantDims]);
        }
      }
      multiply_tokens<Shared::kColumns>(
          fn, &s.x[0][0][column], count, [&](int t, int row, float sum) {
            s.part[t][first_row + row][g] = exists ? sum : 0.0F;
          });
    }
    if (!begun) {
      ptx::cluster_wait();  // every peer's barriers are ready
    }
    __syncthreads();

    // Push: pre rows and the square sum to every block, the rest to the token's owner.
    const auto row_sum = [&](int t, int row) {
      float sum = 0.0F;
#pragma unroll
      for (int g = 0; g < Shared::kGroups; g += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&s.part[t][row][g]);
        sum = g == 0 ? four.x : __fadd_rn(sum, four.x);
        sum = __fadd_rn(__fadd_rn(__fadd_rn(sum, four.y), four.z), four.w);
      }
      return sum;
    };
    const auto block_square = [&](int t) {
      float square = s.square_part[t][0];
      for (int b = 1; b < blocks; ++b) {
        square = __fadd_rn(square, s.square_part[t][b]);
      }
      return square;
    };
    if (second) {
      if (thread < count) {
        const auto owner = static_cast<uint32_t>(thread);
        ptx::push_float(ptx::peer_address(&s.square_in[thread][rank], owner),
                        block_square(thread),
                        ptx::peer_address(&s.first, owner));
      }
    } else if (thread < count * kCluster) {
      const int t = thread / kCluster;
      const auto peer = static_cast<uint32_t>(thread % kCluster);
      const uint32_t full = ptx::peer_address(&s.first, peer);
      ptx::push_float4(ptx::peer_address(&s.pre_in[t][rank], peer),
                       make_float4(row_sum(t, 0), row_sum(t, 1), row_sum(t, 2), row_sum(t, 3)),
                       full);
      ptx::push_float(ptx::peer_address(&s.square_in[t][rank], peer), block_square(t), full);
    }
    const int mix = kThreads - 1 - thread;  // from the last thread down: others than above
    const bool ours = !kSplit || (mix % kMixFours != 0) == second;  // four 0: post
    if (p.rows == kHcRows && mix < count * kMixFours && ours) {
      const int t = mix / kMixFours;
      const int four = mix % kMixFours;
      const auto owner = static_cast<uint32_t>(t);
      const int row = kHcHeadRows + 4 * four;
      ptx::push_float4(
          ptx::peer_address(&s.mix_in[rank][four], owner),
          make_float4(
              row_sum(t, row), row_sum(t, row + 1), row_sum(t, row + 2), row_sum(t, row + 3)),
          ptx::peer_address(&s.first, owner));
    }
    if (warp == kSinkhornWarp && p.rows == kHcRows && rank < count) {
      make_mixes<kWidth>(p, s, first_token, rank, parity, !second, !kSplit || second);
    }
    if (!second && warp < count) {
      make_output<kWidth>(p, s, first_token, warp, first_block, blocks, rank, parity);
    }

    group += num_clusters;
    if (!kMany || group >= num_groups) {
      break;
    }
    __syncthreads();
    if (thread == 0) {
      expect(tokens_of(group));
    }
    __syncwarp();
    ptx::cluster_sync();  // nobody pushes into inboxes that are still read
    parity ^= 1U;
  }
}

/// At least one: a card without room tells so at the launch.
template <int kWidth>
int resident_clusters() {
  return std::max(
      1,
      device::resident_clusters(
          hc_fused_kernel<kWidth, false, false>,
          {.block = dim3(kThreads), .cluster = kCluster, .shared_bytes = sizeof(Arena<kWidth>)}));
}

/// Where an output lies where an input does, the clusters of a split group would meet.
bool outputs_apart(const HcFusedParams& p) {
  const auto is_part = [&](const uint16_t* out) {
    return out != nullptr &&
           std::find(p.parts, p.parts + p.num_parts, out) != p.parts + p.num_parts;
  };
  return (p.streams == nullptr || p.streams != p.residual) && p.post_out != p.post &&
         p.comb_out != p.comb && !is_part(p.streams) && !is_part(p.y) && !is_part(p.collapsed);
}

/// Tokens are spread over as many clusters as the card holds at once; more clusters would wait.
template <int kWidth>
void launch_form(const HcFusedParams& params, device::StreamHandle stream) {
  using Shared = Arena<kWidth>;
  static const int clusters = resident_clusters<kWidth>();
  const int capacity = clusters * Shared::kTokens;
  const int passes = (params.num_tokens + capacity - 1) / capacity;
  // Measured: beyond, two clusters per group leave too few groups.
  const bool split = params.num_tokens <= (params.programmatic ? kHcFewTokens : kHcFewTokens / 2) &&
                     clusters >= 6 && params.rows == kHcRows && outputs_apart(params);
  const int spread = split ? clusters / 2 : clusters * passes;
  const int tokens = (params.num_tokens + spread - 1) / spread;
  const int groups = (params.num_tokens + tokens - 1) / tokens;
  const CUtensorMap fn_map = device::make_tensor_map(
      {.base = params.fn,
       .element = device::MapElement::kFloat,
       .extents = {kWidth, kHcStreams, static_cast<uint64_t>(params.rows)},
       .strides = {kWidth * sizeof(float), kHcStreams * kWidth * sizeof(float)},
       .box = {kHcQuantDims, kHcStreams, kRowsPerWarp}});
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(
                      (split ? 2 * groups : std::min(groups, clusters)) * kCluster)),
                  .block = dim3(kThreads),
                  .cluster = kCluster,
                  .shared_bytes = sizeof(Shared),
                  .programmatic = params.programmatic},
                 split               ? hc_fused_kernel<kWidth, false, true>
                 : groups > clusters ? hc_fused_kernel<kWidth, true, false>
                                     : hc_fused_kernel<kWidth, false, false>,
                 params,
                 fn_map,
                 tokens);
}

void check(const HcFusedParams& p) {
  BALEEN_CHECK(p.num_tokens >= 0 && p.num_parts >= 0 && p.num_parts <= kHcMaxParts,
               "num_tokens={} num_parts={}",
               p.num_tokens,
               p.num_parts);
  BALEEN_CHECK(p.rows == kHcRows || p.rows == kHcHeadRows, "rows={}", p.rows);
  BALEEN_CHECK((p.post == nullptr) == (p.comb == nullptr), "post and comb go together");
  BALEEN_CHECK(p.residual != nullptr || (p.num_parts == 1 && p.post == nullptr),
               "the first layer has one part and no post");
}

}  // namespace
}  // namespace hyper_connection

bool hc_fused_sm90_supports(int32_t width) {
  return width == 4096 || width == 7168;
}

void hc_fused_sm90(const HcFusedParams& params, device::StreamHandle stream) {
  hyper_connection::check(params);
  BALEEN_CHECK(hc_fused_sm90_supports(params.width), "width={}", params.width);
  if (params.num_tokens == 0) {
    return;
  }
  if (params.width == 4096) {
    hyper_connection::launch_form<4096>(params, stream);
  } else {
    hyper_connection::launch_form<7168>(params, stream);
  }
}

int32_t hc_fused_resident_clusters(int32_t width) {
  return width == 4096 ? hyper_connection::resident_clusters<4096>()
                       : hyper_connection::resident_clusters<7168>();
}

void hc_fused(const HcFusedParams& params, device::StreamHandle stream) {
  if (hc_fused_sm90_supports(params.width)) {
    hc_fused_sm90(params, stream);
  } else {
    hc_fused_portable(params, stream);
  }
}

}  // namespace baleen::kernels
