#include "runner/decode/run_parts.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baleen::runner {
namespace {

using testing::ElementsAre;

constexpr RunLimits kLimits{
    .graph_tokens = 8, .row_tokens = 4, .pass_tokens = 20, .pass_rows = 3, .pass_results = 5};

/// Every token once and in order, no part over its limits, results as the rows want them.
void expect_whole(const RunParts& split, const std::vector<RunRow>& rows) {
  std::size_t row = 0;
  int32_t next = 0;
  int32_t tokens = 0;
  int32_t results = 0;
  for (const RunPart& part : split.parts()) {
    EXPECT_EQ(part.token_begin, tokens);
    EXPECT_EQ(part.result_begin, results);
    EXPECT_GT(part.num_pieces, 0);
    EXPECT_LE(part.num_tokens, part.prompts ? kLimits.pass_tokens : kLimits.graph_tokens);
    EXPECT_LE(part.num_results, part.prompts ? kLimits.pass_results : kLimits.graph_tokens);
    EXPECT_TRUE(!part.prompts || part.num_pieces <= kLimits.pass_rows);
    int32_t of_part = 0;
    for (const RunPiece& piece : split.pieces_of(part)) {
      ASSERT_EQ(piece.row, static_cast<int32_t>(row));
      ASSERT_EQ(piece.first, next);
      ASSERT_GT(piece.count, 0);
      for (int32_t t = piece.first; t < piece.first + piece.count; ++t) {
        EXPECT_EQ(t >= piece.first_result, t >= rows[row].first_result)
            << "row " << row << " " << t;
      }
      next += piece.count;
      tokens += piece.count;
      of_part += piece.count;
      results += piece.num_results();
      if (next == rows[row].tokens) {
        ++row;
        next = 0;
      }
    }
    EXPECT_EQ(of_part, part.num_tokens);
  }
  EXPECT_EQ(row, rows.size());
}

TEST(RunPartsTest, ShortRowsShareGraphs) {
  RunParts split(kLimits);
  const std::vector<RunRow> rows = {{4, 0}, {3, 0}, {1, 0}, {2, 0}};
  split.split(rows);
  expect_whole(split, rows);
  EXPECT_THAT(split.parts(),
              ElementsAre(RunPart{.num_pieces = 3, .num_tokens = 8, .num_results = 8},
                          RunPart{.piece_begin = 3,
                                  .num_pieces = 1,
                                  .token_begin = 8,
                                  .num_tokens = 2,
                                  .result_begin = 8,
                                  .num_results = 2}));
}

TEST(RunPartsTest, OneLongRowTakesAllToPassesOfPrompts) {
  RunParts split(kLimits);
  const std::vector<RunRow> rows = {{1, 0}, {5, 4}, {2, 0}};
  split.split(rows);
  expect_whole(split, rows);
  ASSERT_EQ(split.parts().size(), 1U);
  EXPECT_TRUE(split.parts()[0].prompts);
  EXPECT_THAT(split.pieces_of(split.parts()[0]),
              ElementsAre(RunPiece{0, 0, 1, 0}, RunPiece{1, 0, 5, 4}, RunPiece{2, 0, 2, 0}));
}

TEST(RunPartsTest, ShortRowsWithoutResultsAreNoGraphs) {
  RunParts split(kLimits);
  const std::vector<RunRow> rows = {{3, 3}};
  split.split(rows);
  expect_whole(split, rows);
  EXPECT_TRUE(split.parts()[0].prompts);
  EXPECT_EQ(split.parts()[0].num_results, 0);
}

TEST(RunPartsTest, LongRowsAreCutAndMeetTheirSuccessors) {
  RunParts split(kLimits);
  const std::vector<RunRow> rows = {{47, 46}, {2, 0}};
  split.split(rows);
  expect_whole(split, rows);
  ASSERT_EQ(split.parts().size(), 3U);
  EXPECT_THAT(split.pieces_of(split.parts()[2]),
              ElementsAre(RunPiece{0, 40, 7, 46}, RunPiece{1, 0, 2, 0}));
}

TEST(RunPartsTest, LimitsOfRowsAndResultsBeginParts) {
  RunParts split(kLimits);
  for (const std::vector<RunRow>& rows : {std::vector<RunRow>{{1, 0}, {1, 0}, {1, 0}, {9, 9}},
                                          {{12, 0}, {1, 0}},
                                          {{9, 3}, {30, 29}, {3, 0}, {5, 5}},
                                          {{20, 20}, {20, 15}, {1, 1}},
                                          {{100, 37}}}) {
    split.split(rows);
    expect_whole(split, rows);
  }
  split.split({});
  EXPECT_TRUE(split.parts().empty());
}

}  // namespace
}  // namespace baleen::runner
