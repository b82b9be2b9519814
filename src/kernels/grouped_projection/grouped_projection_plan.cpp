#include "kernels/grouped_projection/grouped_projection_plan.h"

namespace baleen::kernels {

LinearParams grouped_linear(const GroupedProjectionParams& params) {
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

LinearTaskPlan grouped_cut(const GroupedProjectionParams& params) {
  LinearParams linear = grouped_linear(params);
  linear.num_tokens = 1;  // planning for few is quick
  linear.tuning = {};
  const LinearPlan plan = plan_linear(linear, kGroupedRowTiles);
  return plan.valid ? plan.tasks[0] : LinearTaskPlan{};
}

bool supports_grouped_projection(const GroupedProjectionParams& params) {
  return params.groups > 0 && plan_linear(grouped_linear(params), kGroupedRowTiles).valid;
}

}  // namespace baleen::kernels
