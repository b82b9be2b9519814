#include "base/check.h"
#include "kernels/experts/experts_sm90.cuh"

namespace baleen::kernels {

void launch_experts(const ExpertsParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(experts_supported(params),
               "tokens={} hidden={} width={} slots={} experts={} leaf_blocks={}",
               params.num_tokens,
               params.hidden,
               params.width,
               params.slots,
               params.num_experts,
               params.leaf_blocks);
  if (params.num_tokens == 0) {
    return;
  }
  int device = 0;
  int blocks = 0;
  BALEEN_CUDA_CHECK(cudaGetDevice(&device));
  BALEEN_CUDA_CHECK(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device));
  const ExpertsWorkspace place = experts_workspace(params);
  auto* base = static_cast<std::byte*>(params.workspace);
  experts::Task task{};
  task.params = params;
  task.next_item = reinterpret_cast<int32_t*>(base);
  task.exits = reinterpret_cast<int32_t*>(base + 64);
  task.ready = reinterpret_cast<int32_t*>(base + place.ready);
  task.done = reinterpret_cast<int32_t*>(base + place.done);
  task.max_units =
      static_cast<int32_t>(max_expert_units(params.num_tokens,
                                            params.slots - (params.shared_up != nullptr ? 1 : 0),
                                            params.num_experts,
                                            params.shared_up != nullptr));
  task.hidden_rows = reinterpret_cast<uint16_t*>(base + place.hidden_rows);
  task.slot_rows = base + place.slot_rows;
  if (params.wide_exponents) {
    experts::launch_kernel<true>(task, blocks, stream);
  } else {
    experts::launch_kernel<false>(task, blocks, stream);
  }
}

}  // namespace baleen::kernels
