#include <algorithm>

#include "base/check.h"
#include "device/launch.h"
#include "device/resident_clusters.h"
#include "device/tensor_map.h"
#include "kernels/compressor_pool/cluster_pool_sm90.cuh"
#include "kernels/compressor_pool/compressor_checks.h"
#include "kernels/compressor_pool/dense_pool_sm90.cuh"
#include "kernels/compressor_pool/overlap_pool_sm90.cuh"

namespace baleen::kernels {
namespace {

constexpr int kDenseStages = 24;  // of 8 KB
constexpr int kFewEntries = 64;   // of ratio 128: up to here clusters are quicker
static_assert(dense_shared<kDenseStages>() <= 227 * 1024);

int multiprocessors() {
  int ordinal = 0;
  int count = 0;
  BALEEN_CUDA_CHECK(cudaGetDevice(&ordinal));
  BALEEN_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal));
  return count;
}

template <int kDims>
void launch_overlap(const CompressorPoolParams& params, cudaStream_t stream) {
  const int blocks = overlap_blocks<kDims>(params.max_entries);
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kOverlapThreads)},
                 overlap_pool_kernel<kDims>,
                 params);
}

void launch_cluster(const CompressorPoolParams& params, cudaStream_t stream) {
  static const int resident = device::resident_clusters(
      cluster_pool_kernel, {.block = dim3(kClusterThreads), .cluster = kClusterBlocks});
  const int clusters = std::min(std::max(1, resident), params.max_entries);
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(clusters * kClusterBlocks)),
                  .block = dim3(kClusterThreads),
                  .cluster = kClusterBlocks},
                 cluster_pool_kernel,
                 params);
}

void launch_dense(const CompressorPoolParams& params, cudaStream_t stream) {
  const int blocks = std::min(multiprocessors(), params.max_entries);
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(kDenseThreads),
                  .shared_bytes = dense_shared<kDenseStages>()},
                 dense_pool_kernel<kDenseStages>,
                 params,
                 dense_rows_map(params));
}

}  // namespace

void compressor_pool_sm90(const CompressorPoolParams& params,
                          device::StreamHandle stream,
                          int32_t blocks_per_entry) {
  check_compressor_params(params);
  BALEEN_CHECK(
      blocks_per_entry == 0 || (params.kind == CompressorKind::kC128 &&
                                (blocks_per_entry == 1 || blocks_per_entry == kClusterBlocks)),
      "blocks_per_entry={}",
      blocks_per_entry);
  if (params.max_entries == 0) {
    return;
  }
  switch (params.kind) {
    case CompressorKind::kC4:
      launch_overlap<kKvDims>(params, stream);
      return;
    case CompressorKind::kIndex:
      launch_overlap<kIndexDims>(params, stream);
      return;
    case CompressorKind::kC128:
      break;
  }
  if (blocks_per_entry == 0) {
    blocks_per_entry = params.max_entries <= kFewEntries ? kClusterBlocks : 1;
  }
  if (blocks_per_entry == kClusterBlocks) {
    launch_cluster(params, stream);
  } else {
    launch_dense(params, stream);
  }
}

}  // namespace baleen::kernels
