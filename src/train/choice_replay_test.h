#pragma once
// Records of choices for the tests of replay: made up, or as a serving model writes them, and a
// model that trains with them.
//
//   class MyTest : public ChoiceReplayTest {};

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cache/pick_codec.h"
#include "model/forward.h"
#include "train/choice_replay.h"
#include "train/row_logprobs.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {

inline constexpr int64_t kReplayPositions = 80;  // with padding
inline const char* const kExactNumerics = "plain+invariant";

/// Chosen at random by position and layer, but fixed: k experts, min(visible, topk) entries.
inline cache::ChoiceRecords made_up_records(const cache::ChoiceLayout& layout,
                                            int64_t number,
                                            int32_t count) {
  cache::ChoiceRecords records;
  records.count = count;
  for (int32_t t = 0; t < count; ++t) {
    for (std::size_t layer = 0; layer < layout.routed_layers.size(); ++layer) {
      const auto first = static_cast<int32_t>((number * 5 + t * 3 + static_cast<int32_t>(layer)) %
                                              (layout.num_experts - layout.experts_per_token + 1));
      for (int32_t slot = 0; slot < layout.experts_per_token; ++slot) {
        records.routes.push_back(static_cast<uint8_t>(first + slot));
      }
    }
    const int32_t visible = layout.visible_entries(t);
    for (std::size_t layer = 0; layer < layout.picking_layers.size(); ++layer) {
      const int32_t picked = std::min(visible, layout.topk);
      const auto first = static_cast<int32_t>((number * 7 + t + static_cast<int32_t>(layer) * 2) %
                                              (visible - picked + 1));
      std::vector<int32_t> entries;
      for (int32_t i = 0; i < picked; ++i) {
        entries.push_back(first + i);
      }
      cache::encode_picks(entries, visible, layout.topk, records.picks);
    }
  }
  return records;
}

/// What a serving model records while it gets `prefill` tokens at once and then one by one.
inline cache::ChoiceRecords served_records(model::Model& served,
                                           const std::vector<int32_t>& ids,
                                           std::size_t prefill) {
  model::Sequence sequence = served.new_sequence();
  cache::ChoiceRecords records;
  model::ForwardOutput output;
  for (std::size_t begin = 0; begin + 1 < ids.size();) {
    const std::size_t count = begin == 0 ? std::min(prefill, ids.size() - 1) : 1;
    const model::RowInput row{.sequence = &sequence,
                              .first_position = static_cast<int64_t>(begin),
                              .ids = std::span(ids).subspan(begin, count)};
    served.forward({&row, 1}, output);
    for (std::size_t i = 0; i < count; ++i) {
      const auto routes = output.choices.routes_of(i);
      const auto picks = output.choices.picks_of(i);
      records.routes.insert(records.routes.end(), routes.begin(), routes.end());
      records.picks.insert(records.picks.end(), picks.begin(), picks.end());
    }
    begin += count;
  }
  records.count = static_cast<int32_t>(ids.size()) - 1;
  return records;
}

inline std::vector<Sample> replay_samples() {
  std::vector<Sample> samples;
  for (const int64_t length : {3, 12, 13, 13, 25, 40, 41, 41, 72}) {
    samples.push_back(some_sample(static_cast<int64_t>(samples.size()) + 3, length, 32));
    samples.back().weights.assign(static_cast<std::size_t>(length), 1.0F);
  }
  return samples;
}

class ChoiceReplayTest : public testing::Test {
 protected:
  explicit ChoiceReplayTest(at::ScalarType dtype = at::kFloat,
                            const std::string& numerics = kExactNumerics)
      : masters_(plain_masters(fresh_nano(nano_config(), 5, dtype), {.indexer = true})),
        numerics_(ops::Numerics::by_name(numerics)),
        tables_(model::make_rope_tables(
            masters_.config(), kReplayPositions, masters_.values().embed, numerics_)) {}

  model::Model serving() const {
    model::ForwardConfig config;
    config.numerics = kExactNumerics;
    config.record_choices = true;
    model::ModelParameters shown = masters_.leaves();
    model::for_each_parameter(
        shown, [](const model::ParameterInfo&, at::Tensor& value) { value = value.detach(); });
    return {std::move(shown), config};
  }

  PackedForwardOptions options(Recompute recompute = Recompute::kNone) const {
    return {.numerics = numerics_, .tables = &tables_, .recompute = recompute};
  }

  PackedBatch packed(const std::vector<Sample>& samples, int64_t pad_multiple = 1) const {
    return pack(samples,
                {.weight = 1.0, .mtp_weight = 1.0},
                {.dtype = masters_.values().embed.scalar_type(),
                 .pad_multiple = pad_multiple,
                 .pad_id = 2});
  }

  struct Outcome {
    std::map<int64_t, std::vector<double>> logprobs;  // by sample number
    at::Tensor gradients;
  };
  /// Log-probabilities of all targets, and gradients of their sum.
  Outcome run(const std::vector<std::vector<Sample>>& batches,
              ChoiceReplay& replay,
              ReplayMode mode,
              int64_t pad_multiple = 1,
              Recompute recompute = Recompute::kNone,
              ReplayAgreement* agreement = nullptr) {
    masters_.zero_gradients();
    Outcome outcome;
    for (const std::vector<Sample>& samples : batches) {
      const PackedBatch batch = packed(samples, pad_multiple);
      PackedForwardOptions how = options(recompute);
      how.routing = agreement != nullptr;
      how.index_scores = agreement != nullptr;
      const PackedForward out =
          replayed_forward(masters_.leaves(), batch, how, replay, mode, agreement);
      const at::Tensor logprobs =
          row_logprobs(
              out.hidden, masters_.leaves().head, batch.main.targets, {.numerics = numerics_})
              .logprobs;
      logprobs.sum().backward();
      for (std::size_t row = 0; row < batch.main.samples.size(); ++row) {
        const auto place = static_cast<std::size_t>(batch.main.samples[row]);
        outcome.logprobs[batch.samples[place].number].push_back(
            logprobs[static_cast<int64_t>(row)].item<double>());
      }
    }
    outcome.gradients = masters_.flat_gradients().clone();
    return outcome;
  }

  Masters masters_;
  ops::Numerics numerics_;
  model::RopeTables tables_;
};

}  // namespace baleen::train
