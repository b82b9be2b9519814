#include "model/choices.h"

#include <cstddef>
#include <cstdint>
#include <tuple>

#include <ATen/ops/sort.h>

#include "base/check.h"
#include "cache/pick_codec.h"

namespace baleen::model {
namespace {

/// Experts of every layer in ascending order, on the host.
std::vector<at::Tensor> sorted_experts(const StepChoices& choices) {
  std::vector<at::Tensor> sorted;
  for (const at::Tensor& experts : choices.experts) {
    sorted.push_back(std::get<0>(at::sort(experts, -1)).to(at::kCPU).contiguous());
  }
  return sorted;
}

void append_experts(const at::Tensor& experts,
                    int64_t row,
                    const cache::ChoiceLayout& layout,
                    std::vector<uint8_t>& bytes) {
  const int64_t* ids = experts.const_data_ptr<int64_t>() + row * experts.size(1);
  for (int64_t slot = 0; slot < experts.size(1); ++slot) {
    bytes.push_back(static_cast<uint8_t>(ids[slot] & 0xFF));
    if (layout.expert_id_bytes() == 2) {
      bytes.push_back(static_cast<uint8_t>(ids[slot] >> 8));
    }
  }
}

void append_picks(const at::Tensor& mask,
                  int64_t token,
                  int32_t visible,
                  const cache::ChoiceLayout& layout,
                  std::vector<int32_t>& scratch,
                  std::vector<uint8_t>& bytes) {
  if (visible <= layout.topk) {
    return;  // all of them
  }
  BALEEN_CHECK(mask.defined(), "no picks for a query that sees {} entries", visible);
  const bool* picked = mask.const_data_ptr<bool>() + token * mask.size(2);
  scratch.clear();
  for (int32_t entry = 0; entry < visible; ++entry) {
    if (picked[entry]) {
      scratch.push_back(entry);
    }
  }
  cache::encode_picks(scratch, visible, layout.topk, bytes);
}

}  // namespace

void encode_choices(const StepChoices& choices,
                    const cache::ChoiceLayout& layout,
                    ForwardChoices& records) {
  BALEEN_CHECK(choices.experts.size() == layout.routed_layers.size() &&
                   choices.picks.size() == layout.picking_layers.size(),
               "{} routed and {} picking layers, expected {} and {}",
               choices.experts.size(),
               choices.picks.size(),
               layout.routed_layers.size(),
               layout.picking_layers.size());
  records.route_bytes = layout.route_bytes();
  records.routes.clear();
  records.picks.clear();
  records.pick_begin.clear();
  const std::vector<at::Tensor> experts = sorted_experts(choices);
  std::vector<int32_t> scratch;
  for (std::size_t g = 0; g < choices.groups.size(); ++g) {
    const SequenceGroup& group = choices.groups[g];
    BALEEN_CHECK(group.batch == 1, "choices are recorded for sequences one by one");
    std::vector<at::Tensor> masks;
    for (const std::vector<at::Tensor>& of_layer : choices.picks) {
      const at::Tensor& mask = of_layer.at(g);
      masks.push_back(mask.defined() ? mask.to(at::kCPU).contiguous() : mask);
    }
    for (int64_t token = 0; token < group.tokens; ++token) {
      for (const at::Tensor& of_layer : experts) {
        append_experts(of_layer, group.row_begin + token, layout, records.routes);
      }
      records.pick_begin.push_back(static_cast<int64_t>(records.picks.size()));
      const int32_t visible =
          layout.visible_entries(static_cast<int32_t>(group.first_position + token));
      for (const at::Tensor& mask : masks) {
        append_picks(mask, token, visible, layout, scratch, records.picks);
      }
    }
  }
  records.pick_begin.push_back(static_cast<int64_t>(records.picks.size()));
}

}  // namespace baleen::model
