#pragma once
// Pool of ratio-128 compressors on Hopper for few entries: a cluster of eight blocks takes one, a
// block 64 of its channels, which share a scale. Warp w has run w, the slots 16 w .. 16 w + 15, a
// lane two channels, and asks for all its values and scores at once. The blocks exchange the square
// sums of their channels by one-way pushes (st.async), and each finishes and stores its own.
//
//   cluster_pool_kernel<<<8 * clusters, kClusterThreads>>>(params);   // clusters of 8

#include "kernels/compressor_pool/dense_pool_sm90.cuh"
#include "kernels/compressor_pool/pool_math.cuh"
#include "kernels/compressor_pool/pool_tail.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/pdl.cuh"
#include "kernels/ptx/push_to_peer.cuh"
#include "kernels/ptx/read_only_load.cuh"
#include "kernels/ptx/remote_arrive.cuh"

namespace baleen::kernels {

inline constexpr int kClusterBlocks = 8;
inline constexpr int kClusterDims = kKvDims / kClusterBlocks;
inline constexpr int kClusterThreads = kDenseRuns * 32;
inline constexpr int kClusterResident = 2;  // blocks of a multiprocessor: 128 KB asked for at once
static_assert(kClusterDims == kKvScaleDims && kClusterDims == 2 * 32 &&
              kKvRopeDims == kClusterDims);

/// Two channels of a run, position bias in. A row of a token is [values | scores]; the older slots
/// may stand in the ring, the bias in.
__device__ __forceinline__ void load_run(const CompressorPoolParams& params,
                                         const CompressorPlanEntry& record,
                                         int first_slot,
                                         int channel,
                                         float2 (&scores)[kRunSlots],
                                         float2 (&values)[kRunSlots]) {
  const int first_pass = kDenseWindow - record.rows_from_pass - first_slot;  // of the run's slots
  const float* rows = params.rows +
                      (record.end_row - (kDenseWindow - 1) + first_slot) * params.row_stride +
                      channel;
  const auto add_bias = [&](int i) {
    const float2 b =
        __ldg(reinterpret_cast<const float2*>(params.ape + (first_slot + i) * kKvDims + channel));
    scores[i].x = __fadd_rn(scores[i].x, b.x), scores[i].y = __fadd_rn(scores[i].y, b.y);
  };
  if (first_pass <= 0) {
#pragma unroll
    for (int i = 0; i < kRunSlots; ++i) {
      scores[i] = ptx::load_static_two(rows + i * params.row_stride + kKvDims);
    }
#pragma unroll
    for (int i = 0; i < kRunSlots; ++i) {
      values[i] = ptx::load_static_two(rows + i * params.row_stride);
    }
    if (params.ape != nullptr) {
#pragma unroll
      for (int i = 0; i < kRunSlots; ++i) {
        add_bias(i);
      }
    }
    return;
  }
  const int32_t oldest = (record.end_position - (kDenseWindow - 1) + first_slot) % params.ring_size;
#pragma unroll
  for (int i = 0; i < kRunSlots; ++i) {
    const int32_t around = oldest + i < params.ring_size ? 0 : params.ring_size;
    const int64_t place = record.own_ring_base + oldest + i - around;
    const float* row = i >= first_pass ? rows + i * params.row_stride
                                       : params.ring + place * (2 * kKvDims) + channel;
    values[i] = ptx::load_static_two(row);
    scores[i] = ptx::load_static_two(row + kKvDims);
    if (i >= first_pass && params.ape != nullptr) {
      add_bias(i);
    }
  }
}

__global__ void __launch_bounds__(kClusterThreads, kClusterResident)
    cluster_pool_kernel(const __grid_constant__ CompressorPoolParams params) {
  __shared__ float2 maxima[kDenseRuns][32];
  __shared__ float4 sums[kDenseRuns][32];  // weights, then values, of two channels
  __shared__ __align__(16) float squares[2][kClusterBlocks];
  __shared__ ptx::Barrier arrived[2];
  const int run = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(ptx::cluster_rank());
  const int channel = rank * kClusterDims + lane * 2;
  if (threadIdx.x == 0) {
    ptx::barrier_init(&arrived[0], 1);
    ptx::barrier_init(&arrived[1], 1);
    ptx::fence_barrier_init();
  }
  __syncwarp();
  ptx::cluster_arrive_relaxed();  // the barriers are published by the fence at their init
  ptx::wait_for_predecessor();
  const int32_t count = entry_count(params);
  const auto step = static_cast<int32_t>(gridDim.x) / kClusterBlocks;
  const float frequency = __ldg(params.frequencies + lane);
  const float2 g = __ldg(reinterpret_cast<const float2*>(params.norm_weight + channel));
  bool begun = false;
  uint32_t stored = 0;
  for (int32_t entry = static_cast<int32_t>(blockIdx.x) / kClusterBlocks; entry < count;
       entry += step) {
    const auto* plan = reinterpret_cast<const int4*>(params.plan + entry);
    const int4 low = __ldg(plan);
    const int4 high = __ldg(plan + 1);
    const CompressorPlanEntry record = {low.x, low.y, low.z, low.w, high.x, high.y, 0, 0};
    if (record.destination < 0) {
      continue;
    }
    float2 scores[kRunSlots];
    float2 values[kRunSlots];
    load_run(params, record, run * kRunSlots, channel, scores, values);
    if (!begun) {
      ptx::cluster_wait();  // every peer's barriers are ready
      begun = true;
    }
    float2 largest = scores[0];
#pragma unroll
    for (int i = 1; i < kRunSlots; ++i) {
      largest.x = fmaxf(largest.x, scores[i].x), largest.y = fmaxf(largest.y, scores[i].y);
    }
    maxima[run][lane] = largest;
    const uint32_t buffer = stored & 1U;
    const uint32_t parity = stored / 2 & 1U;
    ++stored;
    if (threadIdx.x == 0) {
      ptx::barrier_expect_bytes(&arrived[buffer], sizeof(squares[0]));
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kDenseRuns; ++r) {
      const float2 m = maxima[r][lane];
      largest.x = fmaxf(largest.x, m.x), largest.y = fmaxf(largest.y, m.y);
    }
    PoolSum own[2];
#pragma unroll
    for (int i = 0; i < kRunSlots; ++i) {
      pool_add(own[0], pool_weight(scores[i].x, largest.x), values[i].x);
      pool_add(own[1], pool_weight(scores[i].y, largest.y), values[i].y);
    }
    sums[run][lane] = make_float4(own[0].weight, own[1].weight, own[0].value, own[1].value);
    __syncthreads();
    if (run != 0) {
      continue;
    }
    PoolSum total[2];
#pragma unroll
    for (int r = 0; r < kDenseRuns; ++r) {
      const float4 one = sums[r][lane];
      if (r == 0) {
        total[0] = {one.x, one.z};
        total[1] = {one.y, one.w};
      } else {
        pool_append(total[0], {one.x, one.z});
        pool_append(total[1], {one.y, one.w});
      }
    }
    const float result[2] = {pool_result(total[0]), pool_result(total[1])};
    if (params.pooled != nullptr) {
      *reinterpret_cast<float2*>(params.pooled + static_cast<int64_t>(entry) * kKvDims + channel) =
          make_float2(result[0], result[1]);
    }
    float v[2] = {to_bf16(result[0]), to_bf16(result[1])};
    const float square = warp_sum(square_tree(v));
    if (lane < kClusterBlocks) {
      const auto peer = static_cast<uint32_t>(lane);
      ptx::push_float(ptx::peer_address(&squares[buffer][rank], peer),
                      square,
                      ptx::peer_address(&arrived[buffer], peer));
    }
    float2 turn = {};
    if (rank == kClusterBlocks - 1) {
      turn = rotation(first_position(record.end_position, kDenseWindow), frequency);
    }
    ptx::barrier_wait_cluster(&arrived[buffer], parity);
    const float4 a = *reinterpret_cast<const float4*>(&squares[buffer][0]);
    const float4 b = *reinterpret_cast<const float4*>(&squares[buffer][4]);
    const float all = __fadd_rn(__fadd_rn(__fadd_rn(a.x, a.y), __fadd_rn(a.z, a.w)),
                                __fadd_rn(__fadd_rn(b.x, b.y), __fadd_rn(b.z, b.w)));
    const float rho = inverse_rms(all, kKvDims, params.eps);
    v[0] = normalised(v[0], rho, g.x);
    v[1] = normalised(v[1], rho, g.y);
    uint8_t* out = params.kv_pool.base + kv_value_offset(params.kv_pool, record.destination);
    uint32_t code = 0;
    if (rank == kClusterBlocks - 1) {
      rotate_pair(v[0], v[1], turn);
      *reinterpret_cast<uint32_t*>(out + kKvNopeDims + 4 * lane) =
          (__float_as_uint(v[0]) >> 16) | (__float_as_uint(v[1]) & 0xFFFF0000U);
    } else {
      const float scale = numerics::q8_scale(group_amax<32>(kernels::largest(v)));
      const float inverse = inverse_pow2(scale);
      code = numerics::ue8m0_from_pow2(scale);
      *reinterpret_cast<uint16_t*>(out + channel) =
          static_cast<uint16_t>(ptx::pack_e4m3(v[0] * inverse, v[1] * inverse, 0.0F, 0.0F));
    }
    if (lane == 0) {
      params.kv_pool.base[kv_scale_offset(params.kv_pool, record.destination) + rank] =
          static_cast<uint8_t>(code);
    }
  }
  if (!begun) {
    ptx::cluster_wait();
  }
}

}  // namespace baleen::kernels
