#include "kernels/grouped_prompt/grouped_prompt.h"

#include "base/check.h"
#include "device/tensor_map.h"
#include "kernels/grouped_projection/grouped_projection_plan.h"
#include "kernels/grouped_prompt/grouped_prompt_task.h"
#include "kernels/linear/linear_layout.h"

namespace baleen::kernels {
namespace {

using grouped_prompt::kTileOutputs;
using grouped_prompt::kTileTokens;

constexpr int32_t kMostLeaves = 2;
constexpr int32_t kFewestItems = 120;  // tiles that count as filling the card
constexpr int32_t kFewestTokens = 65;

int32_t token_tiles_of(const GroupedProjectionParams& params) {
  return (params.num_tokens + kTileTokens - 1) / kTileTokens;
}

}  // namespace

bool supports_grouped_prompt(const GroupedProjectionParams& params) {
  if (params.stored != WeightFormat::kE4m3AsBf16 || params.output != LinearOutput::kE4m3 ||
      params.weight_scale_format != ScaleFormat::kUe8m0 || params.num_tokens <= 0 ||
      params.groups <= 0 || params.outputs <= 0 || params.outputs % kTileOutputs != 0 ||
      params.inputs <= 0 || params.inputs % 128 != 0) {
    return false;
  }
  const LinearTaskPlan cut = grouped_cut(params);
  return cut.leaves > 0 && cut.leaves <= kMostLeaves;
}

bool grouped_prompt_serves(const GroupedProjectionParams& params) {
  const int32_t items = params.groups * (params.outputs / kTileOutputs) * token_tiles_of(params);
  return params.num_tokens >= kFewestTokens && items >= kFewestItems &&
         supports_grouped_prompt(params);
}

void launch_grouped_prompt(const GroupedProjectionParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(supports_grouped_prompt(params),
               "grouped projection of prompts: tokens={} groups={} outputs={} inputs={}",
               params.num_tokens,
               params.groups,
               params.outputs,
               params.inputs);
  BALEEN_CHECK(params.weight != nullptr && params.weight_scales != nullptr && params.x != nullptr &&
                   params.y != nullptr && params.y_scales != nullptr,
               "a null pointer");
  const LinearTaskPlan cut = grouped_cut(params);
  const int64_t row_bytes = int64_t{params.groups} * params.inputs * 2;
  const CUtensorMap x =
      device::make_tensor_map({.base = params.x,
                               .element = device::MapElement::kByte,
                               .extents = {kTileRowBytes,
                                           static_cast<uint64_t>(params.num_tokens),
                                           static_cast<uint64_t>(row_bytes / kTileRowBytes)},
                               .strides = {static_cast<uint64_t>(row_bytes), kTileRowBytes},
                               .box = {kTileRowBytes, static_cast<uint32_t>(kTileTokens), 2},
                               .swizzle = device::MapSwizzle::k128});
  const int32_t tiles_per_group = params.outputs / kTileOutputs;
  grouped_prompt::start({.weight = static_cast<const uint8_t*>(params.weight),
                         .weight_scales = static_cast<const uint8_t*>(params.weight_scales),
                         .y = static_cast<uint8_t*>(params.y),
                         .y_scales = params.y_scales,
                         .num_tokens = params.num_tokens,
                         .token_tiles = token_tiles_of(params),
                         .output_tiles = params.groups * tiles_per_group,
                         .tiles_per_group = tiles_per_group,
                         .blocks = cut.tiles_per_row,
                         .leaf_blocks = cut.tiles_per_leaf},
                        x,
                        stream);
}

}  // namespace baleen::kernels
