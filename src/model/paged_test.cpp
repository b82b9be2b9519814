// A sequence whose rows live in shared pages gives, bit for bit, what one with memory of its own
// gives when both are cut alike: whatever pages it got, beside whatever neighbours, in raw and in
// packed formats, after tokens were taken back, and behind a prefix that another sequence left in
// its pages.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/hash_fill.h"
#include "model/paged_formats.h"
#include "model/small_models_for_tests.h"

namespace baleen::model {
namespace {

using cache::FullPage;
using cache::SequencePages;
using cache::SwaPage;

constexpr int64_t kRollback = 3;

struct Variant {
  const char* name;
  ops::Numerics numerics;
  at::ScalarType dtype;
  bool by_tensors = false;
};

std::vector<Variant> variants() {
  ops::Numerics fp8_keys = ops::Numerics::reference();
  fp8_keys.indexer_quant = ops::IndexerQuant::kFp8;
  return {{"plain double", ops::Numerics::plain(), at::kDouble},
          {"plain float", ops::Numerics::plain(), at::kFloat},
          {"reference double", ops::Numerics::reference(), at::kDouble},
          {"reference float", ops::Numerics::reference(), at::kFloat},
          {"8-bit index keys", fp8_keys, at::kDouble},
          {"plain float by tensors", ops::Numerics::plain(), at::kFloat, true},
          {"reference double by tensors", ops::Numerics::reference(), at::kDouble, true},
          {"reference float by tensors", ops::Numerics::reference(), at::kFloat, true},
          {"8-bit index keys by tensors", fp8_keys, at::kDouble, true}};
}

/// The same with every sum in one order per row.
std::vector<Variant> fixed_order_variants() {
  std::vector<Variant> all = variants();
  for (Variant& variant : all) {
    variant.numerics.summation = ops::Summation::kInvariant;
  }
  return all;
}

/// A model, its pools with painted pages, and pages handed out in random order.
class PagedModel {
 public:
  PagedModel(ModelConfig config, const Variant& variant, int64_t max_tokens)
      : params_(small_model(std::move(config), variant.dtype)),
        numerics_(variant.numerics),
        by_tensors_(variant.by_tensors),
        tables_(make_rope_tables(params_.config, max_tokens, params_.embed, numerics_)),
        pools_(make_pools(params_.config, numerics_, variant.dtype, sizes(), /*paint=*/true)) {
    std::mt19937 random(5);
    for (int32_t page = 1; page <= sizes().full_pages; ++page) {
      free_full_.push_back(FullPage(page));
    }
    for (int32_t page = 1; page <= sizes().swa_pages; ++page) {
      free_swa_.push_back(SwaPage(page));
    }
    std::shuffle(free_full_.begin(), free_full_.end(), random);
    std::shuffle(free_swa_.begin(), free_swa_.end(), random);
  }

  static cache::CacheSizes sizes() {
    cache::CacheSizes sizes;
    sizes.full_pages = 12;
    sizes.swa_pages = 12;
    sizes.request_slots = 3;
    sizes.c4_ring_rows = 16;
    sizes.c128_ring_rows = 128 + 8;
    return sizes;
  }

  SequenceState own_state() const {
    return SequenceState(params_.config, options(), params_.embed.options());
  }
  SequenceState paged_state(const SequencePages& pages) {
    SequenceStateOptions paged = options();
    paged.rows_by_tensors = by_tensors_;
    return SequenceState(params_.config, paged, params_.embed.options(), pools_, pages);
  }
  void grow(SequencePages& pages, int64_t num_tokens) {
    while (static_cast<int64_t>(pages.full.size()) * cache::kPageTokens < num_tokens) {
      pages.full.push_back(free_full_.back());
      free_full_.pop_back();
      pages.swa.push_back(free_swa_.back());
      free_swa_.pop_back();
    }
  }
  /// Window pages that no row within the window of `position` lies in are given up, painted,
  /// reused.
  void drop_old_windows(SequencePages& pages, int64_t position) {
    for (std::size_t block = 0; block < pages.swa.size(); ++block) {
      const auto end = (static_cast<int64_t>(block) + 1) * cache::kPageTokens;
      if (pages.swa[block].value() > 0 && end + params_.config.sliding_window <= position) {
        pools_.paint_swa_page(pages.swa[block]);
        free_swa_.insert(free_swa_.begin(), pages.swa[block]);
        pages.swa[block] = SwaPage(0);
      }
    }
  }
  void free_pages(SequencePages& pages) {
    for (const FullPage page : pages.full) {
      pools_.paint_full_page(page);
      free_full_.push_back(page);
    }
    for (const SwaPage page : pages.swa) {
      if (page.value() > 0) {
        pools_.paint_swa_page(page);
        free_swa_.push_back(page);
      }
    }
    pools_.paint_request_ring(pages.slot);
    pages.full.clear();
    pages.swa.clear();
  }

  struct Piece {
    SequenceState* state;
    at::Tensor ids;
  };
  StepOutput step(const std::vector<Piece>& pieces) const {
    const at::NoGradGuard no_grad;
    std::vector<StepRow> rows;
    std::vector<at::Tensor> ids;
    for (const Piece& piece : pieces) {
      rows.push_back({.state = piece.state,
                      .num_tokens = piece.ids.size(0),
                      .logits = LogitsWanted::kAll,
                      .mtp_logits = true});
      ids.push_back(piece.ids);
    }
    return forward_step(params_, tables_, rows, at::cat(ids), numerics_);
  }
  int64_t vocab_size() const { return params_.config.vocab_size; }

 private:
  static SequenceStateOptions options() {
    return {.max_rollback = kRollback, .with_mtp = true, .paint_unused = true};
  }

  ModelParameters params_;
  ops::Numerics numerics_;
  bool by_tensors_;
  RopeTables tables_;
  cache::PoolMemory pools_;
  std::vector<FullPage> free_full_;
  std::vector<SwaPage> free_swa_;
};

bool same(const StepOutput& a, const StepOutput& b) {
  return at::equal(a.logits, b.logits) && a.mtp_logits.defined() == b.mtp_logits.defined() &&
         (!a.mtp_logits.defined() || at::equal(a.mtp_logits, b.mtp_logits));
}

ModelConfig all_kinds() {
  return small_config({0, 4, 128});
}

TEST(PagedTest, RandomCutsGiveTheBitsOfOwnMemory) {
  for (const Variant& variant : variants()) {
    PagedModel model(all_kinds(), variant, 700);
    std::mt19937 random(11);
    SequencePages pages{.full = {}, .swa = {}, .slot = RequestSlot(1)};
    SequenceState paged = model.paged_state(pages);
    SequenceState own = model.own_state();
    const at::Tensor ids = some_ids(700, model.vocab_size());
    while (own.num_tokens() < 700) {
      const int64_t begin = own.num_tokens();
      const int64_t longest = random() % 3 == 0 ? 300 : 5;
      const int64_t count =
          std::min<int64_t>(700 - begin, 1 + static_cast<int64_t>(random()) % longest);
      model.grow(pages, begin + count);
      const at::Tensor piece = ids.narrow(0, begin, count);
      ASSERT_TRUE(same(model.step({{&paged, piece}}), model.step({{&own, piece}})))
          << variant.name << " tokens " << begin << " + " << count;
      model.drop_old_windows(pages, begin + count);
    }
  }
}

TEST(PagedTest, InFixedOrderRandomCutsGiveTheBitsOfOnePass) {
  for (const Variant& variant : fixed_order_variants()) {
    PagedModel model(all_kinds(), variant, 700);
    std::mt19937 random(13);
    SequencePages pages{.full = {}, .swa = {}, .slot = RequestSlot(1)};
    SequenceState paged = model.paged_state(pages);
    SequenceState own = model.own_state();
    const at::Tensor ids = some_ids(700, model.vocab_size());
    const StepOutput whole = model.step({{&own, ids}});
    while (paged.num_tokens() < 700) {
      const int64_t begin = paged.num_tokens();
      const int64_t longest = random() % 3 == 0 ? 300 : 5;
      const int64_t count =
          std::min<int64_t>(700 - begin, 1 + static_cast<int64_t>(random()) % longest);
      model.grow(pages, begin + count);
      const StepOutput out = model.step({{&paged, ids.narrow(0, begin, count)}});
      ASSERT_TRUE(at::equal(out.logits, whole.logits.narrow(0, begin, count)))
          << variant.name << " tokens " << begin << " + " << count;
      const int64_t first = std::max<int64_t>(0, begin - 1);
      if (begin + count - 1 > first) {
        ASSERT_TRUE(
            at::equal(out.mtp_logits, whole.mtp_logits.narrow(0, first, begin + count - 1 - first)))
            << variant.name << " draft rows from " << first;
      }
      model.drop_old_windows(pages, begin + count);
    }
  }
}

TEST(PagedTest, NeighboursAndReusedPagesLeaveEveryBit) {
  const Variant variant = variants()[2];
  PagedModel model(all_kinds(), variant, 700);
  SequencePages left_pages{.full = {}, .swa = {}, .slot = RequestSlot(0)};
  SequencePages right_pages{.full = {}, .swa = {}, .slot = RequestSlot(2)};
  SequenceState left = model.paged_state(left_pages);
  SequenceState left_own = model.own_state();
  const at::Tensor left_ids = some_ids(600, model.vocab_size(), 1);
  for (int64_t round = 0; round < 3; ++round) {
    SequenceState right = model.paged_state(right_pages);
    SequenceState right_own = model.own_state();
    const at::Tensor right_ids = some_ids(400, model.vocab_size(), 2 + round);
    for (int64_t at = 0; at < 400; at += 100) {
      const int64_t begin = left.num_tokens();
      model.grow(left_pages, begin + 50);
      model.grow(right_pages, at + 100);
      const at::Tensor left_piece = left_ids.narrow(0, begin, 50);
      const at::Tensor right_piece = right_ids.narrow(0, at, 100);
      const StepOutput paged = model.step({{&left, left_piece}, {&right, right_piece}});
      const StepOutput own = model.step({{&left_own, left_piece}, {&right_own, right_piece}});
      ASSERT_TRUE(same(paged, own)) << "round " << round << " at " << at;
    }
    model.free_pages(right_pages);
  }
}

TEST(PagedTest, RefusedTokensLeaveNoTrace) {
  for (const Variant& variant : variants()) {
    PagedModel model(all_kinds(), variant, 700);
    std::mt19937 random(3);
    SequencePages pages{.full = {}, .swa = {}, .slot = RequestSlot(0)};
    SequenceState paged = model.paged_state(pages);
    SequenceState own = model.own_state();
    const at::Tensor ids = some_ids(600, model.vocab_size());
    const at::Tensor wrong = some_ids(600, model.vocab_size(), 9);
    model.grow(pages, 640);
    const at::Tensor prompt = ids.narrow(0, 0, 230);
    ASSERT_TRUE(same(model.step({{&paged, prompt}}), model.step({{&own, prompt}})));
    while (own.num_tokens() < 540) {
      const int64_t begin = own.num_tokens();
      const int64_t accepted = static_cast<int64_t>(random() % 4);
      // One right token, then drafts of which the first `accepted` are right.
      const at::Tensor verified = at::cat({ids.narrow(0, begin, 1 + accepted),
                                           wrong.narrow(0, begin + 1 + accepted, 3 - accepted)});
      ASSERT_TRUE(same(model.step({{&paged, verified}}), model.step({{&own, verified}})))
          << variant.name << " at " << begin;
      paged.rollback(begin + 1 + accepted);
      own.rollback(begin + 1 + accepted);
    }
  }
}

/// Leaves a prefix in pages, `extra` tokens beyond it in the same pass, and continues it with other
/// tokens as a second sequence. Returns the largest difference to a cold run with the same cuts.
double prefix_difference(const Variant& variant, int64_t prefix, int64_t extra) {
  PagedModel model(all_kinds(), variant, 900);
  SequencePages first_pages{.full = {}, .swa = {}, .slot = RequestSlot(0)};
  SequenceState first = model.paged_state(first_pages);
  const at::Tensor shared = some_ids(prefix, model.vocab_size());
  model.grow(first_pages, prefix + extra);
  model.step({{&first, at::cat({shared, some_ids(extra, model.vocab_size(), 8)})}});

  SequencePages pages{.full = {}, .swa = {}, .slot = RequestSlot(1)};
  const auto blocks = static_cast<std::size_t>(prefix / cache::kPageTokens);
  pages.full.assign(first_pages.full.begin(),
                    first_pages.full.begin() + static_cast<std::ptrdiff_t>(blocks));
  pages.swa.assign(blocks, SwaPage(0));
  pages.swa.back() = first_pages.swa[blocks - 1];
  model.grow(pages, prefix + 300);
  SequenceState hit = model.paged_state(pages);
  hit.begin_at(prefix);
  SequenceState cold = model.own_state();
  model.step({{&cold, shared}});
  const at::Tensor tail = some_ids(300, model.vocab_size(), 4);
  double worst = 0;
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 150}, {150, 1}, {151, 149}}) {
    const at::Tensor piece = tail.narrow(0, begin, count);
    // Main logits only: the draft row at the border needs streams that only the cold run has.
    const at::Tensor warm = model.step({{&hit, piece}}).logits;
    const at::Tensor fresh = model.step({{&cold, piece}}).logits;
    worst = std::max(worst, (warm - fresh).abs().max().item<double>());
    EXPECT_FALSE(warm.isnan().any().item<bool>()) << variant.name << " at " << begin;
  }
  return worst;
}

TEST(PagedTest, AnotherSequencesPrefixContinuesAsAColdRun) {
  for (const Variant& variant : variants()) {
    for (const int64_t prefix : {int64_t{256}, int64_t{512}}) {
      EXPECT_EQ(prefix_difference(variant, prefix, 0), 0.0) << variant.name << " prefix " << prefix;
    }
  }
  // A chunk that passes over the border writes the rings of the page in passing. Matrix products of
  // another row count differ in the last bits, so equality is up to those ...
  for (const int64_t prefix : {int64_t{256}, int64_t{512}}) {
    EXPECT_LE(prefix_difference(variants()[0], prefix, 40), 1e-10) << prefix;
    EXPECT_LE(prefix_difference(variants()[0], prefix, 250), 1e-10) << prefix;
  }
  // ... and in fixed order there is nothing to differ.
  for (const Variant& variant : fixed_order_variants()) {
    for (const int64_t extra : {40, 250}) {
      EXPECT_EQ(prefix_difference(variant, 256, extra), 0.0) << variant.name << " + " << extra;
    }
  }
}

TEST(PagedDeathTest, RowsThatWereGivenUpAreRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  PagedModel model(all_kinds(), variants()[0], 700);
  SequencePages pages{.full = {}, .swa = {}, .slot = RequestSlot(0)};
  SequenceState paged = model.paged_state(pages);
  EXPECT_DEATH(model.step({{&paged, some_ids(3, 40)}}), "has no window page");
  EXPECT_DEATH(paged.clone(), "cannot be cloned");
}

}  // namespace
}  // namespace baleen::model
