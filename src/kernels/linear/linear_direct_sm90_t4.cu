#include "kernels/linear/linear_direct_start.cuh"

namespace baleen::kernels {

template void start_direct_linear<4>(const DirectDeviceParams&,
                                     const DirectPlan&,
                                     device::StreamHandle);

}  // namespace baleen::kernels
