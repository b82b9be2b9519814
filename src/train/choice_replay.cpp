#include "train/choice_replay.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "cache/pick_codec.h"

namespace baleen::train {
namespace {

using cache::ChoiceLayout;
using cache::ChoiceRecords;

int64_t expert_at(const ChoiceLayout& layout,
                  const std::vector<uint8_t>& routes,
                  int64_t position,
                  std::size_t layer,
                  int64_t slot) {
  const int64_t width = layout.expert_id_bytes();
  const int64_t place = position * layout.route_bytes() +
                        (static_cast<int64_t>(layer) * layout.experts_per_token + slot) * width;
  const uint8_t* id = routes.data() + place;
  return width == 1 ? id[0] : id[0] + 256 * id[1];
}

void check_sizes(const ChoiceLayout& layout,
                 ReplayParts parts,
                 int64_t number,
                 int64_t fed,
                 const ChoiceRecords& records) {
  const auto layers = layout.routed_layers.size();
  if (records.count == 0 && fed > 0) {
    throw Error(
        fmt::format("sample {}: no recorded choices for its {} fed tokens; the engine must record "
                    "them (--record-choices) and the request ask for them",
                    number,
                    fed));
  }
  if (records.first_position != 0 || records.count != fed) {
    throw Error(
        fmt::format("sample {}: recorded choices of positions {} to {}, shape [{}, {}, {}]; "
                    "expected one of each fed token, [{}, {}, {}]",
                    number,
                    records.first_position,
                    records.end(),
                    records.count,
                    layers,
                    layout.experts_per_token,
                    fed,
                    layers,
                    layout.experts_per_token));
  }
  const auto routes = static_cast<int64_t>(records.routes.size());
  if (parts.routes && routes != fed * layout.route_bytes()) {
    throw Error(fmt::format("sample {}: {} bytes of routes, expected {} for shape [{}, {}, {}]",
                            number,
                            routes,
                            fed * layout.route_bytes(),
                            fed,
                            layers,
                            layout.experts_per_token));
  }
  const auto picks = static_cast<int64_t>(records.picks.size());
  const int64_t pick_bytes = layout.pick_bytes(0, static_cast<int32_t>(fed));
  if (parts.picks && picks != pick_bytes) {
    throw Error(
        fmt::format("sample {}: {} bytes of picked entries, expected {} for {} tokens in "
                    "{} layers",
                    number,
                    picks,
                    pick_bytes,
                    fed,
                    layout.picking_layers.size()));
  }
}

void check_routes(const ChoiceLayout& layout, int64_t number, const ChoiceRecords& records) {
  for (int64_t t = 0; t < records.count; ++t) {
    for (std::size_t layer = 0; layer < layout.routed_layers.size(); ++layer) {
      int64_t last = -1;
      for (int64_t slot = 0; slot < layout.experts_per_token; ++slot) {
        const int64_t expert = expert_at(layout, records.routes, t, layer, slot);
        if (expert >= layout.num_experts || expert <= last) {
          throw Error(fmt::format(
              "sample {}, position {}, layer {}: recorded expert {} behind {}; expected "
              "{} distinct ones of {}, ascending",
              number,
              t,
              layout.routed_layers[layer],
              expert,
              last,
              layout.experts_per_token,
              layout.num_experts));
        }
        last = expert;
      }
    }
  }
}

/// Calls visit(position, picking layer, entries) for every set of a sample.
template <class Visit>
void for_each_set(const ChoiceLayout& layout,
                  int64_t number,
                  const ChoiceRecords& records,
                  const Visit& visit) {
  std::vector<int32_t> entries;
  std::size_t begin = 0;
  for (int32_t t = 0; t < records.count; ++t) {
    const int32_t visible = layout.visible_entries(t);
    for (std::size_t layer = 0; layer < layout.picking_layers.size(); ++layer) {
      try {
        begin += cache::decode_picks(
            std::span(records.picks).subspan(begin), visible, layout.topk, entries);
      } catch (const Error& error) {
        throw Error(fmt::format("sample {}, position {}, layer {}: {}",
                                number,
                                t,
                                layout.picking_layers[layer],
                                error.what()));
      }
      visit(t, layer, entries);
    }
  }
}

/// Calls visit(group, place in the group, sample) for the samples of a batch.
template <class Visit>
void for_each_place(const PackedBatch& batch, const Visit& visit) {
  std::size_t next = 0;
  for (std::size_t g = 0; g < batch.groups.size(); ++g) {
    for (int64_t b = 0; b < batch.groups[g].batch; ++b) {
      visit(g, b, batch.samples.at(next++));
    }
  }
}

/// The row's `slot`-th expert where nobody chose: all experts in turn.
int64_t padding_expert(int64_t pad, int64_t slot, const ChoiceLayout& layout) {
  return (pad * layout.experts_per_token + slot) % layout.num_experts;
}

struct MaskOfGroup {
  at::Tensor mask;  // bool [B, T, E] on the host; undefined where every visible entry is picked
  int64_t tokens = 0;
  int64_t entries = 0;

  bool* row(int64_t b, int64_t t) const {
    return mask.data_ptr<bool>() + (b * tokens + t) * entries;
  }
};

MaskOfGroup empty_mask(const model::SequenceGroup& group, const ChoiceLayout& layout) {
  MaskOfGroup out;
  out.tokens = group.tokens;
  out.entries = group.tokens / layout.ratio;
  if (out.entries > layout.topk) {
    out.mask = at::zeros({group.batch, group.tokens, out.entries}, at::kBool);
  }
  return out;
}

}  // namespace

ReplayParts replay_parts_by_name(std::string_view name) {
  for (const auto& [known, parts] :
       {std::pair<std::string_view, ReplayParts>{"none", {.routes = false, .picks = false}},
        {"routes", {.routes = true, .picks = false}},
        {"picks", {.routes = false, .picks = true}},
        {"both", {.routes = true, .picks = true}}}) {
    if (name == known) {
      return parts;
    }
  }
  throw ConfigError(
      fmt::format("replay \"{}\" is not known; accepted: none, routes, picks, both", name));
}

ChoiceReplay::ChoiceReplay(const ModelConfig& config, ReplayParts parts)
    : config_(config), layout_(cache::choice_layout(config)), parts_(parts) {}

void ChoiceReplay::add(const Sample& sample, const ChoiceRecords& records) {
  check_sizes(layout_, parts_, sample.number, sample.fed_tokens(), records);
  if (parts_.routes) {
    check_routes(layout_, sample.number, records);
  }
  if (parts_.picks) {
    for_each_set(layout_, sample.number, records, [](int32_t, std::size_t, const auto&) {});
  }
  ChoiceRecords kept = records;
  if (!parts_.routes) {
    kept.routes.clear();
  }
  if (!parts_.picks) {
    kept.picks.clear();
  }
  records_.insert_or_assign(sample.number, std::move(kept));
}

void ChoiceReplay::require(std::span<const Sample> samples) const {
  for (const Sample& sample : samples) {
    of_sample({.number = sample.number, .row_begin = 0, .tokens = sample.fed_tokens()});
  }
}

const ChoiceRecords& ChoiceReplay::records_of(int64_t number) const {
  const auto found = records_.find(number);
  BALEEN_CHECK(found != records_.end(), "sample {} has no record", number);
  return found->second;
}

const ChoiceRecords& ChoiceReplay::of_sample(const PackedSample& sample) const {
  const auto found = records_.find(sample.number);
  if (found == records_.end()) {
    throw Error(fmt::format(
        "sample {}: no recorded choices for its {} fed tokens", sample.number, sample.tokens));
  }
  if (found->second.count != sample.tokens) {
    throw Error(fmt::format("sample {}: recorded choices of {} tokens, but {} are fed",
                            sample.number,
                            found->second.count,
                            sample.tokens));
  }
  return found->second;
}

model::ChoicesByLayer ChoiceReplay::given(const PackedBatch& batch) const {
  model::ChoicesByLayer layers(config_.layers.size());
  const at::Device device = batch.ids.device();
  const int64_t k = layout_.experts_per_token;
  if (parts_.routes) {
    std::vector<at::Tensor> experts;
    std::vector<int64_t*> rows;
    for (std::size_t i = 0; i < layout_.routed_layers.size(); ++i) {
      experts.push_back(at::empty({batch.num_rows(), k}, at::kLong));
      rows.push_back(experts.back().mutable_data_ptr<int64_t>());
    }
    for_each_place(batch, [&](std::size_t g, int64_t, const PackedSample& sample) {
      const ChoiceRecords& records = of_sample(sample);
      for (int64_t t = 0; t < batch.groups[g].tokens; ++t) {
        for (std::size_t i = 0; i < rows.size(); ++i) {
          for (int64_t slot = 0; slot < k; ++slot) {
            rows[i][(sample.row_begin + t) * k + slot] =
                t < sample.tokens ? expert_at(layout_, records.routes, t, i, slot)
                                  : padding_expert(t - sample.tokens, slot, layout_);
          }
        }
      }
    });
    for (std::size_t i = 0; i < experts.size(); ++i) {
      layers[static_cast<std::size_t>(layout_.routed_layers[i])].experts = experts[i].to(device);
    }
  }
  if (parts_.picks && !layout_.picking_layers.empty()) {
    std::vector<std::vector<MaskOfGroup>> masks(layout_.picking_layers.size());
    for (std::vector<MaskOfGroup>& of_layer : masks) {
      for (const model::SequenceGroup& group : batch.groups) {
        of_layer.push_back(empty_mask(group, layout_));
      }
    }
    for_each_place(batch, [&](std::size_t g, int64_t b, const PackedSample& sample) {
      if (!masks[0][g].mask.defined()) {
        of_sample(sample);
        return;
      }
      for_each_set(layout_,
                   sample.number,
                   of_sample(sample),
                   [&](int32_t t, std::size_t layer, const std::vector<int32_t>& entries) {
                     bool* row = masks[layer][g].row(b, t);
                     for (const int32_t entry : entries) {
                       row[entry] = true;
                     }
                   });
      for (int64_t t = sample.tokens; t < batch.groups[g].tokens; ++t) {
        const int32_t visible =
            std::min(layout_.visible_entries(static_cast<int32_t>(t)), layout_.topk);
        for (const std::vector<MaskOfGroup>& of_layer : masks) {
          std::fill_n(of_layer[g].row(b, t), visible, true);
        }
      }
    });
    for (std::size_t i = 0; i < masks.size(); ++i) {
      auto& picks = layers[static_cast<std::size_t>(layout_.picking_layers[i])].picks;
      for (const MaskOfGroup& of_group : masks[i]) {
        picks.push_back(of_group.mask.defined() ? of_group.mask.to(device) : at::Tensor());
      }
    }
  }
  return layers;
}

void ChoiceReplay::record(const PackedBatch& batch, const model::ChoicesByLayer& made) {
  const int64_t k = layout_.experts_per_token;
  std::vector<at::Tensor> experts;
  for (const int32_t layer : layout_.routed_layers) {
    const at::Tensor& chosen = made.at(static_cast<std::size_t>(layer)).experts;
    experts.push_back(std::get<0>(at::sort(chosen, -1)).to(at::kCPU).contiguous());
  }
  std::vector<std::vector<at::Tensor>> masks;
  for (const int32_t layer : layout_.picking_layers) {
    masks.emplace_back();
    for (const at::Tensor& picks : made.at(static_cast<std::size_t>(layer)).picks) {
      masks.back().push_back(picks.defined() ? picks.to(at::kCPU).contiguous() : picks);
    }
  }
  for_each_place(batch, [&](std::size_t g, int64_t b, const PackedSample& sample) {
    ChoiceRecords records;
    records.count = static_cast<int32_t>(sample.tokens);
    std::vector<int32_t> entries;
    for (int32_t t = 0; t < records.count; ++t) {
      for (const at::Tensor& of_layer : experts) {
        const int64_t* ids = of_layer.const_data_ptr<int64_t>() + (sample.row_begin + t) * k;
        for (int64_t slot = 0; parts_.routes && slot < k; ++slot) {
          records.routes.push_back(static_cast<uint8_t>(ids[slot] & 0xFF));
          if (layout_.expert_id_bytes() == 2) {
            records.routes.push_back(static_cast<uint8_t>(ids[slot] >> 8));
          }
        }
      }
      const int32_t visible = layout_.visible_entries(t);
      for (std::size_t i = 0; parts_.picks && visible > layout_.topk && i < masks.size(); ++i) {
        const at::Tensor& mask = masks[i].at(g);
        BALEEN_CHECK(mask.defined(), "no picks for a query that sees {} entries", visible);
        const bool* picked = mask.const_data_ptr<bool>() + (b * mask.size(1) + t) * mask.size(2);
        entries.clear();
        for (int32_t entry = 0; entry < visible; ++entry) {
          if (picked[entry]) {
            entries.push_back(entry);
          }
        }
        cache::encode_picks(entries, visible, layout_.topk, records.picks);
      }
    }
    records_.insert_or_assign(sample.number, std::move(records));
  });
}

int64_t ChoiceReplay::num_tokens() const {
  int64_t tokens = 0;
  for (const auto& [number, records] : records_) {
    tokens += records.count;
  }
  return tokens;
}

int64_t ChoiceReplay::num_bytes() const {
  int64_t bytes = 0;
  for (const auto& [number, records] : records_) {
    bytes += static_cast<int64_t>(records.routes.size() + records.picks.size());
  }
  return bytes;
}

PackedForward replayed_forward(const model::ModelParameters& params,
                               const PackedBatch& batch,
                               PackedForwardOptions options,
                               ChoiceReplay& replay,
                               ReplayMode mode,
                               ReplayAgreement* agreement) {
  model::ChoicesByLayer given;
  options.given = nullptr;
  options.keep_choices = mode == ReplayMode::kRecord;
  if (mode == ReplayMode::kPlay && replay.parts().any()) {
    given = replay.given(batch);
    options.given = &given;
  }
  PackedForward out = packed_forward(params, batch, options);
  if (mode == ReplayMode::kRecord) {
    replay.record(batch, out.choices);
  }
  if (agreement != nullptr && options.given != nullptr) {
    agreement->add(replay_agreement(params, batch, given, out.taps));
  }
  return out;
}

}  // namespace baleen::train
