#include "comm/mesh_shape.h"

#include <set>

#include <gtest/gtest.h>

#include "base/error.h"

namespace baleen::comm {
namespace {

using Ranks = std::vector<int>;

const MeshShape kAll{.pp = 2, .dp = 2, .cp = 2, .tp = 2, .ep = 2};
MeshShape all_split() {
  MeshShape shape = kAll;
  shape.sequence_parallel = true;
  return shape;
}

TEST(MeshShapeTest, TensorAxisIsInnermostAndPipelineOutermost) {
  EXPECT_EQ(place_of(kAll, 0), (MeshPlace{0, 0, 0, 0}));
  EXPECT_EQ(place_of(kAll, 1), (MeshPlace{.tp = 1}));
  EXPECT_EQ(place_of(kAll, 2), (MeshPlace{.cp = 1}));
  EXPECT_EQ(place_of(kAll, 4), (MeshPlace{.dp = 1}));
  EXPECT_EQ(place_of(kAll, 8), (MeshPlace{.pp = 1}));
  for (int rank = 0; rank < kAll.world_size(); ++rank) {
    EXPECT_EQ(rank_at(kAll, place_of(kAll, rank)), rank);
  }
}

TEST(MeshShapeTest, GroupsOfOneRankAreThoseOfItsAxes) {
  const int rank = rank_at(kAll, {.pp = 1, .dp = 0, .cp = 1, .tp = 0});  // 10
  EXPECT_EQ(members(kAll, Axis::kTp, rank), (Ranks{10, 11}));
  EXPECT_EQ(members(kAll, Axis::kCp, rank), (Ranks{8, 10}));
  EXPECT_EQ(members(kAll, Axis::kDp, rank), (Ranks{10, 14}));
  EXPECT_EQ(members(kAll, Axis::kPp, rank), (Ranks{2, 10}));
  EXPECT_EQ(members(kAll, Axis::kReplicas, rank), (Ranks{8, 10, 12, 14}));
  EXPECT_EQ(members(kAll, Axis::kWorld, rank).size(), 16U);
}

TEST(MeshShapeTest, SequenceParallelismAddsTheTensorAxisToTheTokenAxes) {
  EXPECT_EQ(members(kAll, Axis::kSequence, 10), (Ranks{8, 10}));
  EXPECT_EQ(members(kAll, Axis::kTokens, 10), (Ranks{8, 10, 12, 14}));
  EXPECT_EQ(members(all_split(), Axis::kSequence, 10), (Ranks{8, 9, 10, 11}));
  EXPECT_EQ(members(all_split(), Axis::kTokens, 10), (Ranks{8, 9, 10, 11, 12, 13, 14, 15}));
}

TEST(MeshShapeTest, ExpertBlocksAreNeighboursInTokenOrder) {
  EXPECT_EQ(members(kAll, Axis::kExperts, 10), (Ranks{8, 10}));
  EXPECT_EQ(members(kAll, Axis::kExpertReplicas, 10), (Ranks{10, 14}));
  EXPECT_EQ(members(all_split(), Axis::kExperts, 10), (Ranks{10, 11}));
  EXPECT_EQ(members(all_split(), Axis::kExpertReplicas, 10), (Ranks{8, 10, 12, 14}));
}

TEST(MeshShapeTest, PipelineEndsMeetAndStagesBetweenThemAreAlone) {
  const MeshShape shape{.pp = 3, .tp = 2};
  EXPECT_EQ(members(shape, Axis::kPipelineEnds, 1), (Ranks{1, 5}));
  EXPECT_EQ(members(shape, Axis::kPipelineEnds, 3), (Ranks{3}));
  EXPECT_EQ(members(MeshShape{.tp = 2}, Axis::kPipelineEnds, 1), (Ranks{1}));
}

TEST(MeshShapeTest, EveryGroupIsTheSameForAllItsMembers) {
  for (const bool sp : {false, true}) {
    for (const int ep : {1, 2, 4}) {
      MeshShape shape{.pp = 3, .dp = 2, .cp = 2, .tp = 2, .ep = ep, .sequence_parallel = sp};
      for (int axis = 0; axis <= static_cast<int>(Axis::kWorld); ++axis) {
        for (int rank = 0; rank < shape.world_size(); ++rank) {
          const Ranks group = members(shape, static_cast<Axis>(axis), rank);
          for (const int member : group) {
            EXPECT_EQ(members(shape, static_cast<Axis>(axis), member), group);
          }
        }
      }
    }
  }
}

TEST(MeshShapeTest, RefusesShapesThatCannotBeNamingTheAxis) {
  const auto text_of = [](const MeshShape& shape) {
    try {
      validate(shape);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(text_of(kAll), "");
  EXPECT_NE(text_of({.cp = 0}).find("axis cp"), std::string::npos);
  EXPECT_NE(text_of({.dp = 2, .ep = 4}).find("axis ep: 4 does not divide the 2"),
            std::string::npos);
  EXPECT_NE(text_of({.tp = 2, .ep = 2}).find("axis ep"), std::string::npos);
  EXPECT_EQ(text_of({.tp = 2, .ep = 2, .sequence_parallel = true}), "");
}

}  // namespace
}  // namespace baleen::comm
