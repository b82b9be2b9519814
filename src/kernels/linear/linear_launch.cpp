#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "device/tensor_map.h"
#include "kernels/linear/linear_device.h"
#include "kernels/linear/linear_direct.h"
#include "kernels/linear/linear_layout.h"
#include "kernels/linear/linear_plan.h"

namespace baleen::kernels {
namespace {

/// x as [chunks of 128 bytes][tokens][128 bytes]; one copy brings the chunks of one ring stage.
CUtensorMap map_of_x(const LinearTask& task,
                     const LinearPlan& plan,
                     int32_t row_tiles,
                     int32_t tokens) {
  const int64_t width = task.format == WeightFormat::kE4m3 ? 1 : 2;
  const auto chunks = static_cast<uint64_t>(task.groups * task.num_inputs * width / kTileRowBytes);
  const uint32_t box_chunks =
      task.format == WeightFormat::kE4m3AsBf16 ? 2U : static_cast<uint32_t>(2 / row_tiles);
  return device::make_tensor_map(
      {.base = task.x,
       .element = device::MapElement::kByte,
       .extents = {kTileRowBytes, static_cast<uint64_t>(tokens), chunks},
       .strides = {static_cast<uint64_t>(task.x_stride * width), kTileRowBytes},
       .box = {kTileRowBytes, static_cast<uint32_t>(plan.token_tile), box_chunks},
       .swizzle = device::MapSwizzle::k128});
}

void check_task(const LinearTask& task, int32_t index) {
  const bool scaled = task.format != WeightFormat::kBf16;
  BALEEN_CHECK(task.weight != nullptr && task.x != nullptr && task.y != nullptr &&
                   (!scaled || task.weight_scales != nullptr) &&
                   (task.format != WeightFormat::kE4m3 || task.x_scales != nullptr) &&
                   (task.output != LinearOutput::kE4m3 || task.y_scales != nullptr),
               "task={} has a null pointer",
               index);
  BALEEN_CHECK(task.y_stride >= int64_t{task.num_outputs} * task.groups &&
                   task.x_stride >= int64_t{task.num_inputs} * task.groups,
               "task={} x_stride={} y_stride={}",
               index,
               task.x_stride,
               task.y_stride);
}

LinearDeviceTask describe(const LinearTask& task,
                          const LinearTaskPlan& cut,
                          const LinearPlan& plan) {
  const int32_t width = task.format == WeightFormat::kE4m3 ? 1 : 2;
  LinearDeviceTask described = {};
  described.x = static_cast<const uint8_t*>(task.x);
  described.weight = static_cast<const uint8_t*>(task.weight);
  described.weight_scales = task.weight_scales;
  described.x_scales = task.x_scales;
  described.y = task.y;
  described.y_scales = task.y_scales;
  described.y_stride = task.y_stride;
  described.x_stride_bytes = task.x_stride * width;
  described.x_scale_stride = task.x_scale_stride;
  described.row_blocks_per_group = cut.row_blocks / task.groups;
  described.tiles_per_row = cut.tiles_per_row;
  described.tiles_per_leaf = cut.tiles_per_leaf;
  described.leaves_per_block = cut.leaves / plan.cluster;
  described.x_chunks_per_group = task.num_inputs * width / kTileRowBytes;
  described.num_outputs = task.num_outputs * task.groups;
  described.format = task.format;
  described.weight_scale_format = task.weight_scale_format;
  described.x_scale_format = task.x_scale_format;
  described.output = task.output;
  return described;
}

/// Long items first, so that short ones even out the end; equal ones stay in order. In place: a
/// launch allocates nothing on the host either.
void sort_tasks(LinearParams& params) {
  const auto row_bytes = [](const LinearTask& task) {
    return task.num_inputs * element_bytes(task.format);
  };
  const int32_t count = std::clamp(params.num_tasks, 0, kMaxLinearTasks);
  for (int32_t t = 1; t < count; ++t) {
    for (auto at = static_cast<std::size_t>(t);
         at > 0 && row_bytes(params.tasks[at]) > row_bytes(params.tasks[at - 1]);
         --at) {
      std::swap(params.tasks[at], params.tasks[at - 1]);
    }
  }
}

}  // namespace

void launch_linear_tasks(const LinearParams& given,
                         int32_t row_tiles,
                         device::StreamHandle stream) {
  LinearParams params = given;
  sort_tasks(params);
  const LinearPlan plan = plan_linear(params, row_tiles);
  BALEEN_CHECK(plan.valid,
               "linear: tasks={} tokens={} first outputs={} inputs={} do not fit one launch",
               params.num_tasks,
               params.num_tokens,
               params.tasks[0].num_outputs,
               params.tasks[0].num_inputs);
  if (plan.num_items == 0) {
    return;
  }
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    check_task(params.tasks[static_cast<std::size_t>(t)], t);
  }
  if (row_tiles == 1) {
    const DirectPlan direct = plan_direct(params, plan);
    if (direct.warp_groups > 0) {
      launch_direct_linear(params, plan, direct, stream);
      return;
    }
  }
  LinearDeviceParams device_params = {};
  LinearXMaps x_maps = {};
  int32_t item = 0;
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    const auto at = static_cast<std::size_t>(t);
    device_params.tasks[at] = describe(params.tasks[at], plan.tasks[at], plan);
    if (!x_is_resident(plan.token_tile)) {
      x_maps.maps[at] = map_of_x(params.tasks[at], plan, row_tiles, params.num_tokens);
    }
    device_params.tasks[at].item_begin = item;
    item += plan.tasks[at].row_blocks * plan.token_tiles;
  }
  device_params.num_tasks = params.num_tasks;
  device_params.num_items = plan.num_items;
  device_params.num_clusters = plan.num_clusters;
  while ((1 << device_params.cluster_shift) < plan.cluster) {
    ++device_params.cluster_shift;
  }
  device_params.stages = plan.stages;
  device_params.num_tokens = params.num_tokens;
  device_params.token_tiles = plan.token_tiles;
  device_params.scale_blocks = plan.scale_blocks;
  device_params.x_offset = plan.x_offset;
  device_params.reduction_offset = plan.reduction_offset;
  device_params.barrier_offset = plan.barrier_offset;
  device_params.scale_offset = plan.scale_offset;
  device_params.programmatic = params.programmatic ? 1 : 0;

  using Start = void (*)(
      const LinearDeviceParams&, const LinearXMaps&, const LinearPlan&, bool, device::StreamHandle);
  Start start = nullptr;
  if (row_tiles == 1) {
    start = plan.token_tile == 8    ? start_linear_kernel<8, 1>
            : plan.token_tile == 16 ? start_linear_kernel<16, 1>
            : plan.token_tile == 32 ? start_linear_kernel<32, 1>
                                    : start_linear_kernel<64, 1>;
  } else {
    start = plan.token_tile == 8    ? start_linear_kernel<8, 2>
            : plan.token_tile == 16 ? start_linear_kernel<16, 2>
                                    : start_linear_kernel<32, 2>;
  }
  start(device_params, x_maps, plan, params.programmatic, stream);
}

void launch_linear(const LinearParams& params, device::StreamHandle stream) {
  launch_linear_tasks(params, 1, stream);
}

}  // namespace baleen::kernels
