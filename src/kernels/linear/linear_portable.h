#pragma once
// The plain kernel behind launch_linear_portable and launch_grouped_projection_portable: any GPU,
// one thread per output, the planned leaves.

#include <cstdint>

#include "kernels/linear/linear.h"

namespace baleen::kernels {

void start_portable_linear(const LinearTask& task,
                           int num_tokens,
                           int leaves,
                           device::StreamHandle stream);

/// Every task of `params` by the plain kernel, cut as the Hopper kernel would cut it.
void launch_portable_tasks(const LinearParams& params,
                           int32_t row_tiles,
                           device::StreamHandle stream);

}  // namespace baleen::kernels
