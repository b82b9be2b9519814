#include "base/check.h"
#include "kernels/grouped_projection/grouped_projection.h"
#include "kernels/linear/linear_device.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/linear/linear_portable.h"

namespace baleen::kernels {
namespace {

constexpr int32_t kRowTiles = 2;  // 128 outputs, one scale of a quantised result

LinearParams as_linear(const GroupedProjectionParams& params) {
  LinearParams linear;
  LinearTask& task = linear.tasks[0];
  task.weight = params.weight;
  task.weight_scales = params.weight_scales;
  task.x = params.x;
  task.y = params.y;
  task.y_scales = params.y_scales;
  task.x_stride = int64_t{params.groups} * params.inputs;
  task.y_stride = int64_t{params.groups} * params.outputs;
  task.num_outputs = params.outputs;
  task.num_inputs = params.inputs;
  task.groups = params.groups;
  task.format = params.stored;
  task.weight_scale_format = params.weight_scale_format;
  task.output = params.output;
  linear.num_tasks = 1;
  linear.num_tokens = params.num_tokens;
  linear.mode = params.mode;
  linear.programmatic = params.programmatic;
  linear.tuning = params.tuning;
  return linear;
}

void check(const GroupedProjectionParams& params) {
  BALEEN_CHECK(supports_grouped_projection(params),
               "grouped projection: tokens={} groups={} outputs={} inputs={} unsupported",
               params.num_tokens,
               params.groups,
               params.outputs,
               params.inputs);
}

}  // namespace

bool supports_grouped_projection(const GroupedProjectionParams& params) {
  return params.groups > 0 && plan_linear(as_linear(params), kRowTiles).valid;
}

void launch_grouped_projection(const GroupedProjectionParams& params, device::StreamHandle stream) {
  check(params);
  launch_linear_tasks(as_linear(params), kRowTiles, stream);
}

void launch_grouped_projection_portable(const GroupedProjectionParams& params,
                                        device::StreamHandle stream) {
  check(params);
  launch_portable_tasks(as_linear(params), kRowTiles, stream);
}

}  // namespace baleen::kernels
