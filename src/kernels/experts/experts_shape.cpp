#include "kernels/experts/experts.h"

namespace baleen::kernels {
namespace {

constexpr int64_t kCounterHead = 128;  // work counter and exit counter
constexpr int64_t kAlign = 256;
constexpr int32_t kMostBlocks = 56;  // of 128 inputs: the widest published model

int64_t aligned(int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

ExpertsWorkspace experts_workspace(const ExpertsParams& params) {
  const int64_t tokens = params.num_tokens;
  const int64_t entries = tokens * params.slots;
  const int64_t units = max_expert_units(tokens, params.slots, params.num_experts, true);
  ExpertsWorkspace place;
  place.ready = kCounterHead;
  place.done = place.ready + aligned(units * 4);
  place.counter_bytes = place.done + aligned(tokens * (params.hidden / 64) * 4);
  place.hidden_rows = aligned(place.counter_bytes);
  place.slot_rows = place.hidden_rows + aligned(entries * params.width * 2);
  const int64_t element = params.round == MoeRound::kPerExpert ? 2 : 4;
  place.bytes = place.slot_rows + aligned(entries * params.hidden * element);
  return place;
}

bool experts_supported(const ExpertsParams& params) {
  const auto blocks_fit = [](int32_t inputs) {
    return inputs > 0 && inputs % 128 == 0 && inputs / 128 <= kMostBlocks;
  };
  const bool shared = params.shared_up != nullptr;
  return params.num_tokens >= 0 && params.num_tokens <= kMaxListTokens &&
         blocks_fit(params.hidden) && blocks_fit(params.width) && params.slots >= 1 &&
         params.slots <= 8 && params.num_experts >= 1 && params.num_experts <= kMaxListExperts &&
         params.leaf_blocks >= 1 && params.width / 128 <= 8 * params.leaf_blocks &&
         shared == (params.shared_down != nullptr);
}

}  // namespace baleen::kernels
