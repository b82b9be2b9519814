#include "kernels/linear/linear_direct_start.cuh"

namespace baleen::kernels {

template void start_direct_linear<8>(const DirectDeviceParams&,
                                     const DirectPlan&,
                                     device::StreamHandle);

}  // namespace baleen::kernels
