#include "kernels/linear/linear_portable.h"

#include "base/check.h"
#include "kernels/linear/linear_plan.h"

namespace baleen::kernels {

void launch_portable_tasks(const LinearParams& params,
                           int32_t row_tiles,
                           device::StreamHandle stream) {
  const LinearPlan plan = plan_linear(params, row_tiles);
  BALEEN_CHECK(
      plan.valid, "linear: tasks={} tokens={} unsupported", params.num_tasks, params.num_tokens);
  if (plan.num_items == 0) {
    return;
  }
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    const auto at = static_cast<std::size_t>(t);
    start_portable_linear(params.tasks[at], params.num_tokens, plan.tasks[at].leaves, stream);
  }
}

void launch_linear_portable(const LinearParams& params, device::StreamHandle stream) {
  launch_portable_tasks(params, 1, stream);
}

}  // namespace baleen::kernels
