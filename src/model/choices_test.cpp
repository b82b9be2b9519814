// Recorded choices are those that the pass made: they equal what the trace saw, and in fixed order
// of summation they do not depend on how the sequence was cut or on what ran beside it.

#include "model/choices.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cache/choice_records.h"
#include "model/small_models_for_tests.h"

namespace baleen::model {
namespace {

constexpr int64_t kChoiceTokens = 300;  // 75 entries of ratio 4, of which 20 are picked

class ChoiceSubject {
 public:
  ChoiceSubject()
      : params_(small_model(small_config({0, 4, 128, 4}), at::kFloat)),
        numerics_(ops::Numerics::by_name("reference+invariant")),
        tables_(make_rope_tables(params_.config, kChoiceTokens, params_.embed, numerics_)),
        layout_(cache::choice_layout(params_.config)) {}

  SequenceState new_state() const {
    return SequenceState(params_.config, {}, params_.embed.options());
  }
  at::Tensor ids(int64_t salt) const {
    return some_ids(kChoiceTokens, params_.config.vocab_size, salt);
  }
  const cache::ChoiceLayout& layout() const { return layout_; }

  struct Piece {
    SequenceState* state;
    at::Tensor ids;
  };
  /// Records of all pieces' tokens.
  ForwardChoices run(const std::vector<Piece>& pieces, Trace* trace = nullptr) const {
    const at::NoGradGuard no_grad;
    std::vector<StepRow> rows;
    std::vector<at::Tensor> all;
    for (const Piece& piece : pieces) {
      rows.push_back({.state = piece.state, .num_tokens = piece.ids.size(0)});
      all.push_back(piece.ids);
    }
    StepChoices choices;
    forward_step(params_, tables_, rows, at::cat(all, 0), numerics_, trace, &choices);
    ForwardChoices records;
    encode_choices(choices, layout_, records);
    return records;
  }

 private:
  ModelParameters params_;
  ops::Numerics numerics_;
  RopeTables tables_;
  cache::ChoiceLayout layout_;
};

/// Tokens [begin, begin + count) of a step, as the positions [first, first + count) of a sequence.
cache::ChoiceRecords records_of(const ForwardChoices& choices,
                                std::size_t begin,
                                int32_t first,
                                int32_t count) {
  cache::ChoiceRecords records;
  records.first_position = first;
  records.count = count;
  for (std::size_t token = begin; token < begin + static_cast<std::size_t>(count); ++token) {
    const auto routes = choices.routes_of(token);
    const auto picks = choices.picks_of(token);
    records.routes.insert(records.routes.end(), routes.begin(), routes.end());
    records.picks.insert(records.picks.end(), picks.begin(), picks.end());
  }
  return records;
}

TEST(ChoicesTest, RecordsAreWhatTheTraceSaw) {
  const ChoiceSubject subject;
  SequenceState state = subject.new_state();
  Trace trace("layers.");
  const ForwardChoices choices = subject.run({{&state, subject.ids(0)}}, &trace);
  const auto records = records_of(choices, 0, 0, kChoiceTokens);
  const cache::ChoiceReader reader(subject.layout(), records);
  ASSERT_EQ(subject.layout().routed_layers, (std::vector<int32_t>{1, 2, 3}));
  ASSERT_EQ(subject.layout().picking_layers, (std::vector<int32_t>{1, 3}));
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string layer = std::to_string(subject.layout().routed_layers[i]);
    const at::Tensor experts = trace.at("layers." + layer + ".ffn.experts");
    for (int32_t t = 0; t < kChoiceTokens; ++t) {
      std::vector<int32_t> chosen = {experts[t][0].item<int32_t>(), experts[t][1].item<int32_t>()};
      std::sort(chosen.begin(), chosen.end());
      ASSERT_EQ(reader.experts(t, i), chosen) << "layer " << layer << " token " << t;
    }
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string layer = std::to_string(subject.layout().picking_layers[i]);
    const at::Tensor mask = trace.at("layers." + layer + ".attn.picks")[0];
    for (int32_t t = 0; t < kChoiceTokens; ++t) {
      std::vector<int32_t> picked;
      for (int32_t entry = 0; entry < (t + 1) / 4; ++entry) {
        if (mask[t][entry].item<bool>()) {
          picked.push_back(entry);
        }
      }
      ASSERT_EQ(reader.picks(t, i), picked) << "layer " << layer << " token " << t;
    }
  }
}

TEST(ChoicesTest, CutsAndNeighboursChangeNoRecord) {
  const ChoiceSubject subject;
  SequenceState whole_state = subject.new_state();
  const auto whole =
      records_of(subject.run({{&whole_state, subject.ids(0)}}), 0, 0, int32_t{kChoiceTokens});
  SequenceState state = subject.new_state();
  SequenceState other = subject.new_state();
  cache::ChoiceRecords parts;
  std::mt19937 random(3);
  while (state.num_tokens() < kChoiceTokens) {
    const int64_t begin = state.num_tokens();
    const int64_t beside = std::min<int64_t>(5, kChoiceTokens - other.num_tokens());
    const int64_t count = std::min<int64_t>(
        kChoiceTokens - begin, 1 + static_cast<int64_t>(random() % (random() % 40 + 1)));
    // The other sequence comes first, so that the records begin behind its own.
    std::vector<ChoiceSubject::Piece> pieces;
    if (beside > 0) {
      pieces.push_back({&other, subject.ids(4).narrow(0, other.num_tokens(), beside)});
    }
    pieces.push_back({&state, subject.ids(0).narrow(0, begin, count)});
    const ForwardChoices choices = subject.run(pieces);
    const auto step = records_of(choices,
                                 static_cast<std::size_t>(beside),
                                 static_cast<int32_t>(begin),
                                 static_cast<int32_t>(count));
    cache::take_choices(parts, step, step.end(), subject.layout());
  }
  EXPECT_EQ(parts, whole);
}

}  // namespace
}  // namespace baleen::model
