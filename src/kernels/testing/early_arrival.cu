// A kernel with the fault that tools/check_machine_code.py is there to find: it gives a stage back
// to the copy engine while loads from it may still be under way. Never launched; a test reads its
// machine code.
#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared_access.cuh"

namespace baleen::kernels {

__global__ void early_arrival_kernel(uint32_t* out) {
  __shared__ uint32_t stage[32];
  __shared__ ptx::Barrier full;
  __shared__ ptx::Barrier empty;
  ptx::barrier_wait(&full, 0);
  const uint32_t word = ptx::load_shared_4(ptx::shared_address(stage + threadIdx.x));
  ptx::barrier_arrive(&empty);
  out[threadIdx.x] = word;
}

}  // namespace baleen::kernels
