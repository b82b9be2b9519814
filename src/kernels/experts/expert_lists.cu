#include "base/check.h"
#include "device/launch.h"
#include "kernels/experts/expert_lists.cuh"
#include "kernels/ptx/pdl.cuh"

namespace baleen::kernels {
namespace {

__global__ void __launch_bounds__(experts::kListThreads)
    lists_kernel(const ExpertListsParams params) {
  __shared__ experts::ListShared shared;
  ptx::wait_for_predecessor();
  experts::build_lists(params, shared);
}

}  // namespace

void check_list_sizes(const ExpertListsParams& params) {
  BALEEN_CHECK(params.num_tokens >= 0 && params.num_tokens <= kMaxListTokens && params.top >= 1 &&
                   params.top <= 7 && params.num_experts >= 1 &&
                   params.num_experts <= kMaxListExperts,
               "tokens={} top={} experts={}",
               params.num_tokens,
               params.top,
               params.num_experts);
}

void build_expert_lists(const ExpertListsParams& params, device::StreamHandle stream) {
  check_list_sizes(params);
  device::launch(
      stream, {.grid = dim3(1), .block = dim3(experts::kListThreads)}, lists_kernel, params);
}

}  // namespace baleen::kernels
