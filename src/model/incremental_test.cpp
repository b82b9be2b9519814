// A sequence gives the same logits however it is cut: at once, in chunks, token by token, beside
// other sequences, after tokens were taken back, from a copy of its state.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/hash_fill.h"
#include "model/small_models_for_tests.h"

namespace baleen::model {
namespace {

constexpr double kDoubleTolerance = 1e-10;

/// A model, one sequence of ids, and the logits of the whole sequence run without any state.
class Subject {
 public:
  Subject(ModelParameters params, int64_t num_tokens)
      : params_(std::move(params)),
        numerics_(ops::Numerics::plain()),
        tables_(make_rope_tables(params_.config, num_tokens, params_.embed, numerics_)),
        ids_(some_ids(num_tokens, params_.config.vocab_size)) {
    const at::NoGradGuard no_grad;
    const TrainingOutput whole = forward_training(
        params_,
        ids_.unsqueeze(0),
        {.numerics = numerics_, .with_mtp = true, .tables = &tables_, .trace = nullptr});
    logits_ = whole.logits[0];
    mtp_logits_ = whole.mtp_logits[0];
  }

  SequenceState new_state(int64_t max_rollback = 0) const {
    return SequenceState(params_.config,
                         {.max_rollback = max_rollback, .with_mtp = true, .paint_unused = true},
                         params_.embed.options());
  }

  /// Runs the next `count` tokens and returns the largest difference to the whole run.
  double step(SequenceState& state, int64_t count) const {
    const at::NoGradGuard no_grad;
    const int64_t begin = state.num_tokens();
    const StepOutput out = forward_step(
        params_,
        tables_,
        {{.state = &state, .num_tokens = count, .logits = LogitsWanted::kAll, .mtp_logits = true}},
        ids_.narrow(0, begin, count),
        numerics_);
    double worst = max_difference(out.logits, logits_.narrow(0, begin, count));
    const int64_t mtp_begin = std::max<int64_t>(0, begin - 1);
    const int64_t mtp_count = begin + count - 1 - mtp_begin;
    EXPECT_EQ(out.mtp_spans[0].count, mtp_count);
    if (mtp_count > 0) {
      worst = std::max(worst,
                       max_difference(out.mtp_logits, mtp_logits_.narrow(0, mtp_begin, mtp_count)));
    }
    return worst;
  }

  const ModelParameters& params() const { return params_; }
  const ops::Numerics& numerics() const { return numerics_; }
  const RopeTables& tables() const { return tables_; }
  const at::Tensor& ids() const { return ids_; }
  const at::Tensor& logits() const { return logits_; }
  int64_t num_tokens() const { return ids_.size(0); }

 private:
  ModelParameters params_;
  ops::Numerics numerics_;
  RopeTables tables_;
  at::Tensor ids_;
  at::Tensor logits_;
  at::Tensor mtp_logits_;
};

ModelParameters toy() {
  return make_hash_filled(golden_toy_config(), {}, at::TensorOptions(at::kDouble));
}

ModelParameters published_ratios() {
  return small_model(small_config({0, 4, 128}), at::kDouble);
}

TEST(IncrementalTest, EverySplitInTwoEqualsTheWhole) {
  const Subject subject(toy(), 40);
  for (int64_t prefill = 1; prefill < 40; ++prefill) {
    SequenceState state = subject.new_state();
    EXPECT_LE(subject.step(state, prefill), kDoubleTolerance) << prefill;
    EXPECT_LE(subject.step(state, 40 - prefill), kDoubleTolerance) << prefill;
  }
}

TEST(IncrementalTest, EveryChunkSizeEqualsTheWhole) {
  const Subject subject(toy(), 40);
  for (int64_t chunk = 1; chunk <= 40; ++chunk) {
    SequenceState state = subject.new_state();
    while (state.num_tokens() < 40) {
      const int64_t count = std::min(chunk, 40 - state.num_tokens());
      EXPECT_LE(subject.step(state, count), kDoubleTolerance) << chunk;
    }
  }
}

TEST(IncrementalTest, PrefillThenDecodeEqualsTheWhole) {
  const Subject subject(toy(), 40);
  // The state after every prefill length is continued token by token for three groups of ratio 4.
  for (int64_t prefill = 1; prefill < 40; ++prefill) {
    SequenceState state = subject.new_state();
    subject.step(state, prefill);
    const int64_t end = std::min<int64_t>(40, prefill + 13);
    while (state.num_tokens() < end) {
      EXPECT_LE(subject.step(state, 1), kDoubleTolerance) << prefill;
    }
  }
}

TEST(IncrementalTest, RandomSplitsWithPublishedRatiosEqualTheWhole) {
  const Subject subject(published_ratios(), 700);
  std::mt19937 random(3);
  const std::vector<int64_t> sizes = {1, 2, 3, 4, 5, 63, 64, 127, 128, 129, 200};
  for (int round = 0; round < 8; ++round) {
    SequenceState state = subject.new_state();
    while (state.num_tokens() < 700) {
      const int64_t count = sizes[random() % sizes.size()];
      const int64_t fits = std::min(count, 700 - state.num_tokens());
      ASSERT_LE(subject.step(state, fits), kDoubleTolerance) << state.num_tokens();
    }
  }
}

TEST(IncrementalTest, ChunkedAndTokenByTokenRunsAgreeAroundGroupBorders) {
  // Prompts that end just before, at and behind the borders of groups, windows and pages, in chunks
  // of every kind, then nine tokens one by one.
  constexpr int64_t kOneByOne = 9;
  constexpr int64_t kWhole = 1000;
  const std::vector<int64_t> lengths = {
      1, 2, 3, 4, 5, 7, 8, 9, 127, 128, 129, 131, 132, 133, 255, 256, 257, 515};
  const Subject subject(published_ratios(), lengths.back() + kOneByOne);
  for (const int64_t chunk : {int64_t{1},
                              int64_t{3},
                              int64_t{4},
                              int64_t{5},
                              int64_t{64},
                              int64_t{127},
                              int64_t{128},
                              int64_t{129},
                              kWhole}) {
    SequenceState state = subject.new_state();
    for (const int64_t length : lengths) {
      while (state.num_tokens() + chunk <= length) {
        ASSERT_LE(subject.step(state, chunk), kDoubleTolerance) << chunk << " at " << length;
      }
      SequenceState copy = state.clone();
      if (copy.num_tokens() < length) {
        ASSERT_LE(subject.step(copy, length - copy.num_tokens()), kDoubleTolerance)
            << chunk << " at " << length;
      }
      for (int64_t i = 0; i < kOneByOne; ++i) {
        ASSERT_LE(subject.step(copy, 1), kDoubleTolerance) << chunk << " behind " << length;
      }
    }
  }
}

TEST(IncrementalTest, TakingTokensBackLeavesNoTrace) {
  for (const bool published : {false, true}) {
    const Subject subject(published ? published_ratios() : toy(), published ? 300 : 60);
    std::mt19937 random(5);
    const int64_t max_rollback = 5;
    SequenceState state = subject.new_state(max_rollback);
    if (published) {
      subject.step(state, 120);
    }
    int rollbacks = 0;
    while (state.num_tokens() < subject.num_tokens()) {
      const int64_t count = std::min<int64_t>(1 + static_cast<int64_t>(random() % 6),
                                              subject.num_tokens() - state.num_tokens());
      ASSERT_LE(subject.step(state, count), kDoubleTolerance) << state.num_tokens();
      if (random() % 2 == 0) {
        const int64_t back = static_cast<int64_t>(random() % (max_rollback + 1));
        const int64_t target =
            std::max({state.num_tokens() - back, state.rollback_limit(), int64_t{1}});
        state.rollback(target);
        ++rollbacks;
      }
    }
    EXPECT_GT(rollbacks, 5);
  }
}

TEST(IncrementalTest, RejectedDraftsDoNotMatter) {
  // Other tokens than the true ones are run and taken back, as speculation does.
  const Subject subject(toy(), 48);
  SequenceState state = subject.new_state(4);
  const at::NoGradGuard no_grad;
  while (state.num_tokens() < 48) {
    const int64_t length = state.num_tokens();
    const int64_t drafts = std::min<int64_t>(4, 48 - length);
    const at::Tensor wrong = (subject.ids().narrow(0, length, drafts) + 1).remainder(32);
    forward_step(subject.params(),
                 subject.tables(),
                 {{.state = &state, .num_tokens = drafts, .logits = LogitsWanted::kNone}},
                 wrong,
                 subject.numerics());
    state.rollback(length);
    ASSERT_LE(subject.step(state, 1), kDoubleTolerance) << length;
  }
}

TEST(IncrementalTest, ACopyContinuesOnItsOwn) {
  const Subject subject(toy(), 40);
  SequenceState state = subject.new_state();
  subject.step(state, 17);
  SequenceState copy = state.clone();
  while (state.num_tokens() < 40) {
    EXPECT_LE(subject.step(state, 1), kDoubleTolerance);
  }
  EXPECT_LE(subject.step(copy, 23), kDoubleTolerance);
}

TEST(IncrementalTest, AResetStateIsAFreshOne) {
  const Subject subject(toy(), 40);
  SequenceState state = subject.new_state();
  subject.step(state, 38);
  state.reset();
  EXPECT_EQ(state.num_tokens(), 0);
  while (state.num_tokens() < 12) {
    EXPECT_LE(subject.step(state, 1), kDoubleTolerance);
  }
}

TEST(IncrementalTest, SequencesOfOneStepDoNotMeet) {
  const Subject subject(published_ratios(), 300);
  const at::NoGradGuard no_grad;
  // Several copies of one sequence at different places, run together with different counts.
  const std::vector<int64_t> starts = {0, 1, 3, 127, 128, 200};
  std::vector<SequenceState> states;
  for (const int64_t start : starts) {
    states.push_back(subject.new_state());
    if (start > 0) {
      subject.step(states.back(), start);
    }
  }
  for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{
           {5, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}, {1, 8, 1, 130, 2, 4}}) {
    std::vector<StepRow> rows;
    std::vector<at::Tensor> ids;
    std::vector<int64_t> begins;
    for (std::size_t i = 0; i < states.size(); ++i) {
      begins.push_back(states[i].num_tokens());
      rows.push_back({.state = &states[i],
                      .num_tokens = counts[i],
                      .logits = i % 2 == 0 ? LogitsWanted::kAll : LogitsWanted::kLast,
                      .mtp_logits = false});
      ids.push_back(subject.ids().narrow(0, begins.back(), counts[i]));
    }
    rows[1].logits = LogitsWanted::kNone;
    const StepOutput out =
        forward_step(subject.params(), subject.tables(), rows, at::cat(ids, 0), subject.numerics());
    EXPECT_EQ(out.spans[1].count, 0);
    for (std::size_t i = 0; i < states.size(); ++i) {
      const LogitsSpan span = out.spans[i];
      const int64_t end = begins[i] + counts[i];
      EXPECT_LE(max_difference(out.logits.narrow(0, span.begin, span.count),
                               subject.logits().narrow(0, end - span.count, span.count)),
                kDoubleTolerance)
          << i;
    }
  }
}

TEST(IncrementalDeathTest, RefusesToTakeBackMoreThanAgreed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Subject subject(toy(), 30);
  SequenceState state = subject.new_state(2);
  subject.step(state, 20);
  EXPECT_EQ(state.rollback_limit(), 18);
  EXPECT_DEATH(state.rollback(17), "rollback to 17");
}

}  // namespace
}  // namespace baleen::model
