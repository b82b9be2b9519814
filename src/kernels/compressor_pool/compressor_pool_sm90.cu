#include <algorithm>

#include "base/check.h"
#include "device/launch.h"
#include "device/tensor_map.h"
#include "kernels/compressor_pool/compressor_checks.h"
#include "kernels/compressor_pool/dense_pool_sm90.cuh"
#include "kernels/compressor_pool/overlap_pool_sm90.cuh"

namespace baleen::kernels {
namespace {

constexpr int kDenseStages = 24;  // of 8 KB
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

template <int kBlocks>
void launch_dense(const CompressorPoolParams& params, cudaStream_t stream) {
  const int clusters = std::min(multiprocessors() / kBlocks, params.max_entries);
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(clusters * kBlocks)),
                  .block = dim3(kDenseThreads),
                  .cluster = kBlocks,
                  .shared_bytes = dense_shared<kDenseStages>()},
                 dense_pool_kernel<kBlocks, kDenseStages>,
                 params,
                 dense_rows_map(params));
}

}  // namespace

void compressor_pool_sm90(const CompressorPoolParams& params,
                          device::StreamHandle stream,
                          int32_t blocks_per_entry) {
  check_compressor_params(params);
  BALEEN_CHECK(blocks_per_entry == 0 ||
                   (params.kind == CompressorKind::kC128 &&
                    (blocks_per_entry == 1 || blocks_per_entry == 2 || blocks_per_entry == 4)),
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
  if (blocks_per_entry == 0) {  // as many blocks as fill the card
    const int per_entry = multiprocessors() / params.max_entries;
    blocks_per_entry = per_entry >= 4 ? 4 : per_entry >= 2 ? 2 : 1;
  }
  if (blocks_per_entry == 4) {
    launch_dense<4>(params, stream);
  } else if (blocks_per_entry == 2) {
    launch_dense<2>(params, stream);
  } else {
    launch_dense<1>(params, stream);
  }
}

}  // namespace baleen::kernels
