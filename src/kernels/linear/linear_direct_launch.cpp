#include "kernels/linear/linear_direct.h"

namespace baleen::kernels {

void launch_direct_linear(const LinearParams& params,
                          const LinearPlan& plan,
                          const DirectPlan& direct,
                          device::StreamHandle stream) {
  const LinearTask& task = params.tasks[0];
  DirectDeviceParams described = {};
  described.weight = static_cast<const uint8_t*>(task.weight);
  described.x = static_cast<const uint8_t*>(task.x);
  described.x_stride = static_cast<uint32_t>(task.x_stride);
  described.tiles_per_row = static_cast<uint32_t>(plan.tasks[0].tiles_per_row);
  described.num_tokens = static_cast<uint32_t>(params.num_tokens);
  described.x_scales = task.x_scales;
  described.weight_scales = task.weight_scales;
  described.x_scale_stride = static_cast<uint32_t>(task.x_scale_stride);
  described.x_scale_format = task.x_scale_format;
  described.weight_scale_format = task.weight_scale_format;
  described.output = task.output;
  described.tiles_per_leaf = static_cast<uint32_t>(plan.tasks[0].tiles_per_leaf);
  described.y = task.y;
  described.y_stride = static_cast<uint32_t>(task.y_stride);
  while ((1 << described.leaf_shift) < plan.tasks[0].leaves) {
    ++described.leaf_shift;
  }
  const auto start = direct.token_tile == 2   ? start_direct_linear<2>
                     : direct.token_tile == 4 ? start_direct_linear<4>
                     : direct.token_tile == 8 ? start_direct_linear<8>
                                              : start_direct_linear<16>;
  start(described, direct, stream);
}

}  // namespace baleen::kernels
