// The draft layer beside a main model that verifies: its rows are those of the whole run, whatever
// was guessed in between; a chain continues from its own streams; hidden rows are never read.

#include "model/draft_step.h"

#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/head.h"
#include "model/mtp.h"
#include "model/paged_formats.h"
#include "model/small_models_for_tests.h"

namespace baleen::model {
namespace {

constexpr double kDraftTolerance = 1e-10;
constexpr int64_t kTextTokens = 290;  // over a page border of 256 and windows of 128
constexpr int64_t kDraftsPerStep = 3;

/// A model in double, a text, and the draft logits of a whole run over it.
class DraftedText {
 public:
  DraftedText()
      : params_(small_model(small_config({0, 4, 128}), at::kDouble)),
        numerics_(ops::Numerics::plain()),
        tables_(make_rope_tables(params_.config, kTextTokens + 8, params_.embed, numerics_)),
        pools_(make_pools(params_.config, numerics_, at::kDouble, sizes(), /*paint=*/true)),
        ids_(some_ids(kTextTokens, params_.config.vocab_size)) {
    const at::NoGradGuard no_grad;
    expected_ = forward_training(params_,
                                 ids_.unsqueeze(0),
                                 {.numerics = numerics_, .with_mtp = true, .tables = &tables_})
                    .mtp_logits[0];
    for (int32_t page = 1; page <= 2; ++page) {
      pages_.full.push_back(cache::FullPage(page));
      pages_.swa.push_back(cache::SwaPage(page));
    }
    pages_.slot = RequestSlot(0);
  }

  static cache::CacheSizes sizes() {
    cache::CacheSizes sizes;
    sizes.full_pages = 2;
    sizes.swa_pages = 2;
    sizes.request_slots = 1;
    sizes.c4_ring_rows = 16;
    sizes.c128_ring_rows = 136;
    return sizes;
  }

  SequenceState own_state() const {
    return SequenceState(params_.config, options(), params_.embed.options());
  }
  SequenceState paged_state() {
    return SequenceState(params_.config, options(), params_.embed.options(), pools_, pages_);
  }

  at::Tensor piece(int64_t begin, int64_t count) const { return ids_.narrow(0, begin, count); }
  int64_t id(int64_t position) const { return ids_[position].item<int64_t>(); }

  StepOutput step(StepRow row, const at::Tensor& ids) const {
    const at::NoGradGuard no_grad;
    row.num_tokens = ids.size(0);
    return forward_step(params_, tables_, {row}, ids, numerics_);
  }
  at::Tensor draft(SequenceState& state, const at::Tensor& ids, bool chained = false) const {
    const at::NoGradGuard no_grad;
    return run_draft_step(params_,
                          tables_,
                          {{.state = &state, .num_rows = ids.size(0), .chained = chained}},
                          ids,
                          numerics_)[0];
  }
  /// Draft logits behind `position`, whose next token is in the text.
  at::Tensor expected(int64_t position) const { return expected_[position]; }

  /// Logits of the chain `guesses` behind the first `num_tokens` tokens, computed without any
  /// state: the draft layer over all rows, its own streams in place of the model's.
  std::vector<at::Tensor> chain_without_state(int64_t num_tokens,
                                              const std::vector<int64_t>& guesses) const {
    const at::NoGradGuard no_grad;
    Trace trace;
    const at::Tensor text = piece(0, num_tokens);
    forward_training(
        params_, text.unsqueeze(0), {.numerics = numerics_, .tables = &tables_, .trace = &trace});
    const auto last_block = std::to_string(params_.config.num_hidden_layers - 1);
    at::Tensor streams = trace.at("layers." + last_block + ".streams").slice(0, 0, num_tokens - 1);
    at::Tensor next_ids = text.slice(0, 1);
    std::vector<at::Tensor> logits;
    for (std::size_t i = 0; i <= guesses.size(); ++i) {
      StepContext context(params_.config,
                          numerics_,
                          tables_,
                          next_ids,
                          {{.batch = 1, .tokens = next_ids.size(0), .first_position = 0}});
      const at::Tensor out = run_mtp_block(streams, params_, 0, context);
      const at::Tensor last = out.narrow(0, out.size(0) - 1, 1);
      if (i > 0) {
        logits.push_back(
            head_logits(last, params_.mtp[0].head, params_.head, params_.config, numerics_)[0]);
      }
      if (i < guesses.size()) {
        streams = at::cat({streams, last}, 0);
        next_ids = at::cat({next_ids, at::full({1}, guesses[i], at::kLong)}, 0);
      }
    }
    return logits;
  }

  cache::PoolMemory& pools() { return pools_; }
  const ModelConfig& config() const { return params_.config; }

 private:
  static SequenceStateOptions options() {
    return {.max_rollback = kDraftsPerStep, .with_mtp = true, .paint_unused = true};
  }

  ModelParameters params_;
  ops::Numerics numerics_;
  RopeTables tables_;
  cache::PoolMemory pools_;
  cache::SequencePages pages_;
  at::Tensor ids_;
  at::Tensor expected_;
};

TEST(DraftStepTest, RowsOfAcceptedTokensAreThoseOfTheWholeRun) {
  DraftedText text;
  const at::Tensor wrong = some_ids(kTextTokens, text.config().vocab_size, 5);
  for (const bool paged : {false, true}) {
    SequenceState state = paged ? text.paged_state() : text.own_state();
    std::mt19937 random(3);
    // A prompt in chunks, each told the token that follows, the last one not.
    text.step({.state = &state, .next_id = text.id(100)}, text.piece(0, 100));
    text.step({.state = &state, .next_id = text.id(101)}, text.piece(100, 1));
    text.step({.state = &state}, text.piece(101, 139));
    int64_t known = 241;  // tokens, the last of which has not run
    at::Tensor logits = text.draft(state, text.piece(known - 1, 1));
    while (known + kDraftsPerStep + 1 < kTextTokens) {
      ASSERT_LE(max_difference(logits, text.expected(known - 2)), kDraftTolerance) << known;
      // Guesses: a chain through the draft layer, then verified by the model.
      const int64_t accepted = static_cast<int64_t>(random() % (kDraftsPerStep + 1));
      const at::Tensor guesses =
          at::cat({text.piece(known, accepted), wrong.narrow(0, known, kDraftsPerStep - accepted)});
      for (int64_t i = 0; i + 1 < kDraftsPerStep; ++i) {
        ASSERT_FALSE(text.draft(state, guesses.narrow(0, i, 1), true).isnan().any().item<bool>());
      }
      drop_draft_chain(state);
      text.step({.state = &state, .mtp = MtpRows::kKeepStreams},
                at::cat({text.piece(known - 1, 1), guesses}));
      state.rollback(known + accepted);
      logits = text.draft(state, text.piece(known, accepted + 1));
      known += accepted + 1;
    }
  }
}

TEST(DraftStepTest, AChainGoesOnFromItsOwnStreams) {
  DraftedText text;
  for (const int64_t num_tokens : {2, 129, 258}) {
    const std::vector<int64_t> guesses = {7, 31, 2};
    const std::vector<at::Tensor> expected = text.chain_without_state(num_tokens, guesses);
    for (const bool paged : {false, true}) {
      SequenceState state = paged ? text.paged_state() : text.own_state();
      if (num_tokens > 2) {
        text.step({.state = &state}, text.piece(0, num_tokens - 2));
      }
      text.step({.state = &state, .next_id = text.id(num_tokens - 1)},
                text.piece(num_tokens - 2, 1));
      // The same row again leaves its streams for the chain.
      state.mtp_layer(0).raw->truncate(num_tokens - 2);
      text.draft(state, text.piece(num_tokens - 1, 1));
      for (std::size_t i = 0; i < guesses.size(); ++i) {
        const at::Tensor logits = text.draft(state, at::full({1}, guesses[i], at::kLong), true);
        ASSERT_LE(max_difference(logits, expected[i]), kDraftTolerance)
            << num_tokens << " guess " << i << " paged " << paged;
      }
    }
  }
}

TEST(DraftStepTest, TheRowBeforeAResumeIsMadeAnewFromItsStreams) {
  DraftedText text;
  SequenceState state = text.paged_state();
  text.step({.state = &state, .next_id = text.id(200)}, text.piece(0, 200));
  const at::Tensor streams =
      state.streams().view(199, 200).reshape({text.config().hc_mult, -1}).clone();
  // Another text had another token at 200, so its row 199 says something else.
  state.mtp_layer(0).raw->truncate(199);
  text.draft(state, at::full({1}, (text.id(200) + 1) % 40, at::kLong));
  SequenceState resumed = text.paged_state();
  resumed.begin_at(200, streams);
  text.step({.state = &resumed, .next_id = text.id(220)}, text.piece(200, 20));
  EXPECT_EQ(resumed.mtp_layer(0).raw->end(), 220);
  text.step({.state = &resumed}, text.piece(220, 1));
  EXPECT_LE(max_difference(text.draft(resumed, text.piece(221, 1)), text.expected(220)),
            kDraftTolerance);
}

TEST(DraftStepTest, HiddenRowsAreNeverRead) {
  DraftedText text;
  SequenceState state = text.paged_state();
  text.step({.state = &state, .next_id = text.id(200)}, text.piece(0, 200));
  const auto last_logits = [&](HiddenDraftRows hidden) {
    SequenceState next = text.paged_state();
    next.begin_at(200);
    next.hide_draft_rows(hidden);
    text.step({.state = &next}, text.piece(200, 2));
    return text.draft(next, text.piece(202, 1));
  };
  const at::Tensor all = last_logits({});
  EXPECT_LE(max_difference(all, text.expected(201)), kDraftTolerance);
  const at::Tensor without_one = last_logits({.before = 0, .hole = 199});
  const at::Tensor without_half = last_logits({.before = 150, .hole = -1});
  const at::Tensor without_any = last_logits({.before = 200, .hole = -1});
  EXPECT_GT(max_difference(without_one, all), 1e-6);
  EXPECT_GT(max_difference(without_half, without_one), 1e-6);
  EXPECT_GT(max_difference(without_any, without_half), 1e-6);

  // Whatever lies in the hidden rows, even NaN, changes nothing.
  const int64_t draft_layer = text.config().num_hidden_layers;
  const auto poison = [&](int64_t begin, int64_t end) {
    const std::vector<double> nan(static_cast<std::size_t>(text.config().head_dim),
                                  std::numeric_limits<double>::quiet_NaN());
    for (int64_t row = begin; row < end; ++row) {
      text.pools().kv_codec().encode(std::span<const double>(nan),
                                     text.pools().swa(draft_layer, cache::SwaPage(1), row));
    }
  };
  poison(199, 200);
  EXPECT_TRUE(at::equal(last_logits({.before = 0, .hole = 199}), without_one));
  poison(0, 150);
  EXPECT_TRUE(at::equal(last_logits({.before = 200, .hole = -1}), without_any));
  EXPECT_FALSE(last_logits({.before = 150, .hole = 199}).isnan().any().item<bool>());
  EXPECT_TRUE(last_logits({.before = 150, .hole = -1}).isnan().any().item<bool>());
}

}  // namespace
}  // namespace baleen::model
