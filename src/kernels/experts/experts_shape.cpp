#include <algorithm>

#include "kernels/experts/expert_tiles.h"
#include "kernels/experts/experts.h"

namespace baleen::kernels {
namespace {

constexpr int64_t kCounterHead = 128;  // work counter and exit counter
constexpr int64_t kAlign = 256;
constexpr int64_t kMostSmallTiles = 2112;  // four for each of the four workers of 132 blocks
// Measured: hidden rows as words are slower beyond this width, and with a shared expert.
constexpr int64_t kMostWordsWidth = 1024;
constexpr int64_t kTokenCounters = 4;  // of one token, whose warps count for themselves
constexpr int32_t kMostBlocks = 56;    // of 128 inputs: the widest published model

int64_t aligned(int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

int64_t up_tiles(const ExpertsParams& params) {
  return std::max(1, 2 * params.width / kExpertTileRows);
}

}  // namespace

bool small_expert_step(const ExpertsParams& params) {
  const int64_t units =
      max_expert_units(params.num_tokens, params.slots, params.num_experts, false);
  return units * up_tiles(params) <= kMostSmallTiles;
}

ExpertsWorkspace experts_workspace(const ExpertsParams& params) {
  const int64_t tokens = params.num_tokens;
  const int64_t entries = tokens * params.slots;
  const int64_t units = max_expert_units(tokens, params.slots, params.num_experts, true);
  const int64_t row = int64_t{params.width} * 2;
  const bool words =
      small_expert_step(params) && params.width <= kMostWordsWidth && params.shared_up == nullptr;
  ExpertsWorkspace place;
  place.ready = kCounterHead;
  place.done = place.ready + aligned(units * 4);
  place.hidden_words =
      place.done + aligned(std::max(tokens, kTokenCounters) * (params.hidden / 64) * 4);
  place.counter_bytes = place.hidden_words + (words ? aligned(entries * row) : 0);
  place.hidden_rows = place.counter_bytes;
  place.slot_rows = place.hidden_rows + aligned(entries * row);
  const int64_t element = params.round == MoeRound::kPerExpert ? 2 : 4;
  // What small steps need more stands in the size of all others, so that a workspace for many
  // tokens does for few. A unit has at most eight entries.
  const int64_t most_small = kMostSmallTiles / up_tiles(params) * kExpertUnitTokens;
  place.bytes = place.hidden_words + aligned(std::min(entries, most_small) * row) +
                aligned(entries * row) + aligned(entries * params.hidden * element);
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
