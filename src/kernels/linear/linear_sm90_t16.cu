#include "kernels/linear/linear_start.cuh"

namespace baleen::kernels {

template void start_linear_kernel<16, 1>(
    const LinearDeviceParams&, const LinearXMaps&, const LinearPlan&, bool, device::StreamHandle);

}  // namespace baleen::kernels
