#include "kernels/linear_prompt/linear_prompt.h"

#include "base/check.h"
#include "device/tensor_map.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/linear_prompt/linear_prompt_task.h"

namespace baleen::kernels {
namespace {

using linear_prompt::kTileOutputs;
using linear_prompt::kTileTokens;

constexpr int32_t kMostLeaves = 2;
constexpr int32_t kFewestItems = 120;   // tiles that count as filling the card
constexpr int32_t kFewestTokens = 65;   // the other form takes 64 at once
constexpr int32_t kInputsAtOnce = 512;  // four scales of a token are read as one word

/// The cut of the sums does not depend on the tokens; planning for few of them is quick.
LinearPlan cut_of(const LinearParams& params) {
  LinearParams few = params;
  few.num_tokens = 1;
  return plan_linear(few, 1);
}

bool covers(const LinearTask& task) {
  return task.format == WeightFormat::kE4m3 && task.output == LinearOutput::kBf16 &&
         task.groups == 1 && task.weight_scale_format == ScaleFormat::kUe8m0 &&
         task.x_scale_format == ScaleFormat::kUe8m0 && task.num_outputs > 0 &&
         task.num_outputs % kTileOutputs == 0 && task.num_inputs > 0 &&
         task.num_inputs % kInputsAtOnce == 0 && task.x_stride % 16 == 0 &&
         task.x_scale_stride % 4 == 0 && task.y_stride % 8 == 0;
}

int32_t token_tiles_of(const LinearParams& params) {
  return (params.num_tokens + kTileTokens - 1) / kTileTokens;
}

}  // namespace

bool supports_linear_prompt(const LinearParams& params) {
  if (params.num_tasks <= 0 || params.num_tasks > kMaxLinearTasks || params.num_tokens <= 0) {
    return false;
  }
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    if (!covers(params.tasks[static_cast<std::size_t>(t)])) {
      return false;
    }
  }
  const LinearPlan plan = cut_of(params);
  bool cut = plan.valid;
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    const LinearTaskPlan& task = plan.tasks[static_cast<std::size_t>(t)];
    cut = cut && task.leaves <= kMostLeaves && task.tiles_per_leaf % 4 == 0;
  }
  return cut;
}

bool linear_prompt_serves(const LinearParams& params) {
  if (params.num_tokens < kFewestTokens || !supports_linear_prompt(params)) {
    return false;
  }
  int32_t items = 0;
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    items += params.tasks[static_cast<std::size_t>(t)].num_outputs / kTileOutputs *
             token_tiles_of(params);
  }
  return items >= kFewestItems;
}

void launch_linear_prompt(const LinearParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(supports_linear_prompt(params),
               "tasks={} tokens={} first outputs={} inputs={}",
               params.num_tasks,
               params.num_tokens,
               params.tasks[0].num_outputs,
               params.tasks[0].num_inputs);
  const LinearPlan plan = cut_of(params);
  linear_prompt::Params out = {};
  linear_prompt::Maps maps = {};
  out.num_tasks = params.num_tasks;
  out.num_tokens = params.num_tokens;
  out.token_tiles = token_tiles_of(params);
  for (int32_t t = 0; t < params.num_tasks; ++t) {
    const auto at = static_cast<std::size_t>(t);
    const LinearTask& task = params.tasks[at];
    BALEEN_CHECK(task.weight != nullptr && task.weight_scales != nullptr && task.x != nullptr &&
                     task.x_scales != nullptr && task.y != nullptr,
                 "task={} has a null pointer",
                 t);
    out.tasks[at] = {.weight = static_cast<const uint8_t*>(task.weight),
                     .weight_scales = static_cast<const uint8_t*>(task.weight_scales),
                     .x_scales = static_cast<const uint8_t*>(task.x_scales),
                     .y = static_cast<uint16_t*>(task.y),
                     .x_scale_stride = task.x_scale_stride,
                     .y_stride = task.y_stride,
                     .blocks = plan.tasks[at].tiles_per_row,
                     .leaf_blocks = plan.tasks[at].tiles_per_leaf,
                     .item_begin = out.num_items};
    out.num_items += task.num_outputs / kTileOutputs * out.token_tiles;
    maps.x[at] = device::make_tensor_map({.base = task.x,
                                          .element = device::MapElement::kByte,
                                          .extents = {static_cast<uint64_t>(task.num_inputs),
                                                      static_cast<uint64_t>(params.num_tokens)},
                                          .strides = {static_cast<uint64_t>(task.x_stride)},
                                          .box = {128, static_cast<uint32_t>(kTileTokens)},
                                          .swizzle = device::MapSwizzle::k128});
  }
  linear_prompt::start(out, maps, stream);
}

}  // namespace baleen::kernels
