// The expert kernel for weights whose exponents span more than 2^11 in a stretch.
#include "kernels/experts/experts_sm90.cuh"

namespace baleen::kernels::experts {

template void launch_kernel<true>(const Task&, int, device::StreamHandle);

}  // namespace baleen::kernels::experts
