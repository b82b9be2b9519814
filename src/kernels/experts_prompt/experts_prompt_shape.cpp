#include "kernels/experts_prompt/experts_prompt.h"
#include "kernels/experts_prompt/prompt_task.h"

namespace baleen::kernels {
namespace {

constexpr int64_t kPlaceAlign = 256;

}  // namespace

ExpertsPromptWorkspace experts_prompt_workspace(const ExpertsParams& params) {
  const int64_t entries = int64_t{params.num_tokens} * params.slots;
  const int64_t units = max_expert_units(params.num_tokens, params.slots, params.num_experts, true);
  const int64_t rows = units * kExpertUnitTokens;
  ExpertsPromptWorkspace place;
  int64_t end = 0;
  const auto next = [&end](int64_t bytes) {
    const int64_t begin = end;
    end = (end + bytes + kPlaceAlign - 1) / kPlaceAlign * kPlaceAlign;
    return begin;
  };
  place.num_groups = next(sizeof(int32_t));
  place.groups = next(units * static_cast<int64_t>(sizeof(experts_prompt::Group)));
  place.input_codes = next(rows * params.hidden);
  place.input_scales = next(rows * (params.hidden / 128) * 2);
  place.hidden_rows = next(entries * params.width * 2);
  place.hidden_codes = next(rows * params.width);
  place.hidden_scales = next(rows * (params.width / 128) * 2);
  place.slot_rows = next(entries * params.hidden * (params.round == MoeRound::kPerExpert ? 2 : 4));
  place.bytes = end;
  return place;
}

bool experts_prompt_supported(const ExpertsParams& params) {
  constexpr int32_t kPair = 2 * 64;  // rows of two tiles
  return experts_supported(params) && params.hidden % kPair == 0 && 2 * params.width % kPair == 0;
}

}  // namespace baleen::kernels
