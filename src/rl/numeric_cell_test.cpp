// What the drift tour and the replay study are made of: sides that round the same way give equal
// bits, replay takes away what choices add to a difference, and a study tells controls from truth.

#include "rl/numeric_cell.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "rl/drift_tour.h"
#include "rl/replay_study.h"
#include "train/nano_model.h"

namespace baleen::rl {
namespace {

model::ModelParameters some_nano() {
  return train::fresh_nano(train::nano_config(), 3, at::kFloat);
}

double mean_difference(const ScoredTexts& a, const ScoredTexts& b) {
  double sum = 0.0;
  double count = 0.0;
  for (std::size_t i = 0; i < a.logprobs.size(); ++i) {
    for (std::size_t t = 0; t < a.logprobs[i].size(); ++t) {
      sum +=
          std::abs(static_cast<double>(a.logprobs[i][t]) - static_cast<double>(b.logprobs[i][t]));
      count += 1.0;
    }
  }
  return sum / count;
}

TEST(NumericCellTest, EqualFormatsGiveEqualBitsWhateverIsReplayed) {
  const model::ModelParameters params = some_nano();
  const NumericSide exact = numeric_side(params, "f32");
  const std::vector<TokenIds> texts =
      sampled_texts(exact, {{3, 9, 10}, {3, 12, 8, 17}, {3, 11}}, 40, {}, 5);
  for (const TokenIds& text : texts) {
    EXPECT_EQ(text.size(), 40U);
  }
  EXPECT_EQ(sampled_texts(exact, {{3, 9, 10}}, 40, {}, 5)[0], texts[0])
      << "a text depends on its place, not on its neighbours";
  const std::vector<int32_t> forbidden = {0, 1, 2};
  for (const TokenIds& text : sampled_texts(exact, {{3, 9}}, 60, forbidden, 5)) {
    EXPECT_EQ(std::count_if(text.begin(), text.end(), [](int32_t id) { return id < 3; }), 0);
  }
  for (const char* formats : {"f32", "bf16", "fp8kv", "fp8", "bf16+fp8kv", "fp8block"}) {
    const NumericSide side = numeric_side(params, formats);
    const ScoredTexts seen = score_recording(side, texts);
    for (const char* replay : {"none", "routes", "picks", "both"}) {
      const ScoredTexts taken =
          score_replaying(side, texts, seen.choices, train::replay_parts_by_name(replay));
      EXPECT_EQ(taken.logprobs, seen.logprobs) << formats << " " << replay;
      EXPECT_EQ(taken.agreement.route_agreement(), 1.0);
      EXPECT_EQ(taken.agreement.pick_jaccard(), 1.0);
    }
    if (std::string(formats) != "f32") {
      EXPECT_GT(mean_difference(seen, score_recording(exact, texts)), 1e-5) << formats;
    }
  }
  EXPECT_THROW(numeric_side(params, "bf16+int3"), ConfigError);
}

TEST(NumericCellTest, AStudyTellsControlsFromTrueSets) {
  const model::ModelParameters params = some_nano();
  const model::ModelParameters older =
      train::fresh_nano(train::nano_config(), 4, at::kFloat);  // others will do
  const StudyReport report = run_study(
      params, older, {.length = 48, .num_texts = 12, .resamples = 200, .gradients = false});
  for (const double value : report.decode_jaccard) {
    EXPECT_EQ(value, 1.0);
  }
  for (const double value : report.trainer_jaccard) {
    EXPECT_EQ(value, 1.0);
  }
  int exact_cells = 0;
  int controls = 0;
  for (const DriftCell& cell : report.drift) {
    const bool control = cell.replay.find("sets") != std::string::npos;
    if (cell.gap == "exact" && !control) {
      EXPECT_EQ(cell.mean_abs, 0.0) << cell.replay;
      EXPECT_EQ(cell.early_mean_abs, 0.0);
      ++exact_cells;
    }
    if (cell.gap == "exact" && control) {
      EXPECT_GT(cell.mean_abs, 1e-3) << cell.replay;
      EXPECT_EQ(cell.early_mean_abs, 0.0) << "nothing is chosen there";
      EXPECT_GT(cell.difference, 5.0 * cell.difference_error) << cell.replay;
      ++controls;
    }
  }
  EXPECT_EQ(exact_cells, 6);
  EXPECT_EQ(controls, 4);
  EXPECT_NE(study_text(report).find("random sets"), std::string::npos);
}

TEST(NumericCellTest, ATourHasARowPerFormat) {
  const std::vector<std::string> rollouts = {"f32", "fp8"};
  std::vector<train::Sample> samples = teaching_texts({.seed = 3}, 0, 8);
  const std::vector<TourCell> cells = run_tour(some_nano(), samples, rollouts);
  ASSERT_EQ(cells.size(), 8U);
  EXPECT_EQ(cells[0].mean_abs, 0.0);
  EXPECT_EQ(cells[3].max, 0.0);
  EXPECT_GT(cells[4].mean_abs, 1e-4);
  const std::string text = tour_text(cells);
  EXPECT_NE(text.find("| fp8 |"), std::string::npos) << text;
}

}  // namespace
}  // namespace baleen::rl
