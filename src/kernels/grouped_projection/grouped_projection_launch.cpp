#include "base/check.h"
#include "kernels/grouped_projection/grouped_projection.h"
#include "kernels/grouped_projection/grouped_projection_plan.h"
#include "kernels/linear/linear_device.h"
#include "kernels/linear/linear_portable.h"

namespace baleen::kernels {
namespace {

void check(const GroupedProjectionParams& params) {
  BALEEN_CHECK(supports_grouped_projection(params),
               "grouped projection: tokens={} groups={} outputs={} inputs={} unsupported",
               params.num_tokens,
               params.groups,
               params.outputs,
               params.inputs);
}

}  // namespace

void launch_grouped_projection(const GroupedProjectionParams& params, device::StreamHandle stream) {
  check(params);
  launch_linear_tasks(grouped_linear(params), kGroupedRowTiles, stream);
}

void launch_grouped_projection_portable(const GroupedProjectionParams& params,
                                        device::StreamHandle stream) {
  check(params);
  launch_portable_tasks(grouped_linear(params), kGroupedRowTiles, stream);
}

}  // namespace baleen::kernels
