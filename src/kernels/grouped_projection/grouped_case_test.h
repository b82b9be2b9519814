#pragma once
// The launch of a grouped projection for a LinearCase (linear_case_test.h), for the GPU tests of
// both forms. Test support.
//
//   LinearCase one(shape, /*max_tokens=*/9, /*seed=*/1);
//   launch_grouped_projection(grouped_params_of(one, shape, 9), stream());

#include "kernels/grouped_projection/grouped_projection.h"
#include "kernels/linear/linear_case_test.h"

namespace baleen::kernels::testing {

inline GroupedProjectionParams grouped_params_of(LinearCase& one,
                                                 const LinearCaseShape& shape,
                                                 int32_t tokens,
                                                 LinearOutput output = LinearOutput::kFloat32) {
  const LinearTask task = one.task();
  return {.weight = task.weight,
          .weight_scales = task.weight_scales,
          .x = static_cast<const uint16_t*>(task.x),
          .y = task.y,
          .y_scales = task.y_scales,
          .num_tokens = tokens,
          .groups = shape.groups,
          .outputs = shape.outputs,
          .inputs = shape.inputs,
          .stored = shape.format,
          .output = output};
}

}  // namespace baleen::kernels::testing
