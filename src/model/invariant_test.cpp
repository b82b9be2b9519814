// In fixed order of summation a token's logits are a function of its sequence alone, bit for bit:
// one pass, any chunks, token by token, beside other sequences, after tokens were taken back, from
// a copied state, in training with gradients, on any number of threads; in double and in float,
// with and without the roundings of the published program; for all layer kinds, and for
// models/abacus.

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "model/forward.h"
#include "model/small_models_for_tests.h"

namespace baleen::model {
namespace {

constexpr int64_t kSequence = 420;  // several entries of ratio 128, more than index_topk of ratio 4

struct FixedOrder {
  std::string name;
  ops::Numerics numerics;
  at::ScalarType dtype;
};

std::vector<FixedOrder> fixed_order_settings() {
  ops::Numerics eight_bit = ops::Numerics::reference();
  eight_bit.indexer_quant = ops::IndexerQuant::kFp8;
  eight_bit.query_norm = ops::QueryNorm::kBf16;
  eight_bit.routing_weight = ops::RoutingWeight::kAfterW2;
  std::vector<FixedOrder> all;
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const std::string suffix = dtype == at::kDouble ? " double" : " float";
    all.push_back({"plain" + suffix, ops::Numerics::plain(), dtype});
    all.push_back({"reference" + suffix, ops::Numerics::reference(), dtype});
    all.push_back({"other roundings" + suffix, eight_bit, dtype});
  }
  for (FixedOrder& setting : all) {
    setting.numerics.summation = ops::Summation::kInvariant;
  }
  return all;
}

/// A model, a sequence, and the logits of one pass over it.
class FixedOrderSubject {
 public:
  explicit FixedOrderSubject(const FixedOrder& setting)
      : params_(small_model(small_config({0, 4, 128}), setting.dtype)),
        numerics_(setting.numerics),
        tables_(make_rope_tables(params_.config, kSequence, params_.embed, numerics_)),
        ids_(some_ids(kSequence, params_.config.vocab_size)) {
    SequenceState state = new_state();
    whole_ = run({{&state, kSequence}});
  }

  struct Piece {
    SequenceState* state;
    int64_t count;
  };

  SequenceState new_state(int64_t max_rollback = 0) const {
    return SequenceState(params_.config,
                         {.max_rollback = max_rollback, .with_mtp = true, .paint_unused = true},
                         params_.embed.options());
  }

  StepOutput run(const std::vector<Piece>& pieces) const {
    const at::NoGradGuard no_grad;
    std::vector<StepRow> rows;
    std::vector<at::Tensor> ids;
    for (const Piece& piece : pieces) {
      rows.push_back({.state = piece.state,
                      .num_tokens = piece.count,
                      .logits = LogitsWanted::kAll,
                      .mtp_logits = true});
      ids.push_back(ids_.narrow(0, piece.state->num_tokens(), piece.count));
    }
    return forward_step(params_, tables_, rows, at::cat(ids, 0), numerics_);
  }

  /// Runs the pieces as one step and holds all their rows against the one pass.
  bool equals_whole(const std::vector<Piece>& pieces) const {
    std::vector<int64_t> begins;
    for (const Piece& piece : pieces) {
      begins.push_back(piece.state->num_tokens());
    }
    const StepOutput out = run(pieces);
    bool equal = true;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto rows_equal = [&](const at::Tensor& found,
                                  const LogitsSpan& span,
                                  const at::Tensor& expected,
                                  int64_t first) {
        return span.count == 0 || at::equal(found.narrow(0, span.begin, span.count),
                                            expected.narrow(0, first, span.count));
      };
      equal = equal && out.spans[i].count == pieces[i].count &&
              rows_equal(out.logits, out.spans[i], whole_.logits, begins[i]) &&
              rows_equal(out.mtp_logits,
                         out.mtp_spans[i],
                         whole_.mtp_logits,
                         std::max<int64_t>(0, begins[i] - 1));
    }
    return equal;
  }

  const ModelParameters& params() const { return params_; }
  const ops::Numerics& numerics() const { return numerics_; }
  const RopeTables& tables() const { return tables_; }
  const at::Tensor& ids() const { return ids_; }
  const StepOutput& whole() const { return whole_; }

 private:
  ModelParameters params_;
  ops::Numerics numerics_;
  RopeTables tables_;
  at::Tensor ids_;
  StepOutput whole_;
};

TEST(InvariantModelTest, ChunksAndSingleTokensGiveTheBitsOfOnePass) {
  const std::vector<int64_t> sizes = {1, 1, 2, 3, 4, 5, 8, 63, 64, 127, 128, 129, 200};
  for (const FixedOrder& setting : fixed_order_settings()) {
    const FixedOrderSubject subject(setting);
    std::mt19937 random(3);
    for (int round = 0; round < 4; ++round) {
      SequenceState state = subject.new_state();
      while (state.num_tokens() < kSequence) {
        const int64_t count =
            round == 0 ? 1
                       : std::min(sizes[random() % sizes.size()], kSequence - state.num_tokens());
        ASSERT_TRUE(subject.equals_whole({{&state, count}}))
            << setting.name << " " << state.num_tokens() << " after " << count;
      }
    }
  }
}

TEST(InvariantModelTest, NeighboursLeaveEveryBit) {
  for (const FixedOrder& setting : fixed_order_settings()) {
    const FixedOrderSubject subject(setting);
    std::vector<SequenceState> states;
    for (const int64_t start : {0, 1, 3, 127, 128, 200}) {
      states.push_back(subject.new_state());
      if (start > 0) {
        subject.run({{&states.back(), start}});
      }
    }
    for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{
             {5, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}, {1, 8, 1, 130, 2, 4}, {40, 1, 60, 3, 1, 90}}) {
      std::vector<FixedOrderSubject::Piece> pieces;
      for (std::size_t i = 0; i < states.size(); ++i) {
        pieces.push_back({&states[i], counts[i]});
      }
      ASSERT_TRUE(subject.equals_whole(pieces)) << setting.name;
    }
  }
}

TEST(InvariantModelTest, TokensTakenBackAndCopiesLeaveEveryBit) {
  for (const FixedOrder& setting : fixed_order_settings()) {
    const FixedOrderSubject subject(setting);
    std::mt19937 random(5);
    SequenceState state = subject.new_state(/*max_rollback=*/5);
    ASSERT_TRUE(subject.equals_whole({{&state, 250}}));
    while (state.num_tokens() < kSequence) {
      const int64_t count =
          std::min<int64_t>(1 + static_cast<int64_t>(random() % 6), kSequence - state.num_tokens());
      ASSERT_TRUE(subject.equals_whole({{&state, count}})) << setting.name;
      if (random() % 3 == 0) {
        state.rollback(std::max(state.num_tokens() - 4, state.rollback_limit()));
      }
      if (random() % 8 == 0) {
        state = state.clone();
      }
    }
  }
}

TEST(InvariantModelTest, TrainingWithGradientsHasTheBitsOfServing) {
  for (const FixedOrder& setting : fixed_order_settings()) {
    const FixedOrderSubject subject(setting);
    ModelParameters leaves = subject.params();
    for_each_parameter(leaves, [](const ParameterInfo&, at::Tensor& value) {
      if (value.is_floating_point()) {
        value = value.detach().clone().requires_grad_(true);
      }
    });
    const ForwardOptions options{
        .numerics = subject.numerics(), .with_mtp = true, .tables = &subject.tables()};
    const TrainingOutput out = forward_training(leaves, subject.ids().unsqueeze(0), options);
    EXPECT_TRUE(out.logits.requires_grad());
    EXPECT_TRUE(at::equal(out.logits[0].detach(), subject.whole().logits)) << setting.name;
    EXPECT_TRUE(at::equal(out.mtp_logits[0].detach(), subject.whole().mtp_logits)) << setting.name;
    // Beside another sequence of the batch, too.
    const at::Tensor other = some_ids(kSequence, subject.params().config.vocab_size, 5);
    const at::NoGradGuard no_grad;
    const TrainingOutput pair =
        forward_training(subject.params(), at::stack({other, subject.ids()}, 0), options);
    EXPECT_TRUE(at::equal(pair.logits[1], subject.whole().logits)) << setting.name;
  }
}

TEST(InvariantModelTest, ThreadsLeaveEveryBit) {
  const int before = at::get_num_threads();
  for (const FixedOrder& setting : fixed_order_settings()) {
    const FixedOrderSubject subject(setting);
    for (const int threads : {1, 2, 3}) {
      at::set_num_threads(threads);
      SequenceState state = subject.new_state();
      for (const int64_t count : {200, 1, 1, 150}) {
        EXPECT_TRUE(subject.equals_whole({{&state, count}})) << setting.name << " " << threads;
      }
    }
  }
  at::set_num_threads(before);
}

/// Logits of models/abacus for one sequence, cut as `counts` says, in the compute type.
template <class Number>
std::vector<Number> abacus_logits(Model& model,
                                  const std::vector<int32_t>& ids,
                                  const std::vector<int64_t>& counts) {
  Sequence sequence = model.new_sequence();
  std::vector<Number> all;
  ForwardOutput output;
  std::size_t begin = 0;
  for (const int64_t count : counts) {
    const RowInput row{.sequence = &sequence,
                       .first_position = static_cast<int64_t>(begin),
                       .ids = std::span(ids).subspan(begin, static_cast<std::size_t>(count)),
                       .logits = LogitsWanted::kAll};
    model.forward({&row, 1}, output);
    begin += static_cast<std::size_t>(count);
    if constexpr (sizeof(Number) == sizeof(double)) {
      all.insert(all.end(), output.logits_f64.begin(), output.logits_f64.end());
    } else {
      all.insert(all.end(), output.logits.begin(), output.logits.end());
    }
  }
  return all;
}

template <class Number>
void expect_abacus_invariant(ComputeType compute, const std::string& numerics) {
  constexpr int64_t kAbacusTokens = 300;
  Model model = Model::load(
      "models/abacus", {.compute = compute, .numerics = numerics, .max_context = kAbacusTokens});
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kAbacusTokens; ++i) {
    ids.push_back((i * 37 + i * i * 11) % 500);
  }
  const auto whole = abacus_logits<Number>(model, ids, {kAbacusTokens});
  std::vector<int64_t> single(kAbacusTokens, 1);
  EXPECT_TRUE(whole == abacus_logits<Number>(model, ids, single)) << numerics;
  for (const int64_t chunk : {3, 64, 100, 129}) {
    std::vector<int64_t> counts;
    for (int64_t done = 0; done < kAbacusTokens; done += chunk) {
      counts.push_back(std::min(chunk, kAbacusTokens - done));
    }
    EXPECT_TRUE(whole == abacus_logits<Number>(model, ids, counts)) << numerics << " " << chunk;
  }
}

TEST(InvariantModelTest, AbacusHasTheBitsOfOnePassHoweverItIsCut) {
  for (const std::string numerics : {"checkpoint+invariant", "plain+invariant"}) {
    expect_abacus_invariant<float>(ComputeType::kFloat32, numerics);
    expect_abacus_invariant<double>(ComputeType::kFloat64, numerics);
  }
}

}  // namespace
}  // namespace baleen::model
