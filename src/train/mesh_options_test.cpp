#include "train/mesh_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "train/nano_model.h"

namespace baleen::train {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string shape_of(const MeshOptions& options) {
  try {
    return mesh_shape(options).name();
  } catch (const ConfigError& error) {
    return error.what();
  }
}

std::string model_fault(const MeshOptions& options, int64_t samples = 64) {
  try {
    check_mesh(options, nano_config({.o_groups = 2}), samples);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MeshOptionsTest, AxesByFlagsAndByOneWord) {
  EXPECT_EQ(shape_of({}), "pp1.dp1.cp1.tp1.ep1");
  EXPECT_EQ(shape_of({.ranks = "4"}), "pp1.dp4.cp1.tp1.ep1");
  EXPECT_EQ(shape_of({.ranks = "8", .tp = 2, .sp = true, .cp = 2}), "pp1.dp2.cp2.tp2+sp.ep1");
  EXPECT_EQ(shape_of({.ranks = "tp2"}), "pp1.dp1.cp1.tp2.ep1");
  EXPECT_EQ(shape_of({.ranks = "tp2+sp.cp2"}), "pp1.dp1.cp2.tp2+sp.ep1");
  EXPECT_EQ(shape_of({.ranks = "pp2dp2"}), "pp2.dp2.cp1.tp1.ep1");
  EXPECT_EQ(shape_of({.ranks = "ep2"}), "pp1.dp2.cp1.tp1.ep2");  // over as many data ranks
  EXPECT_EQ(shape_of({.ranks = "cp2.ep2"}), "pp1.dp1.cp2.tp1.ep2");
  EXPECT_EQ(shape_of({.ep = 2, .cp = 2}), "pp1.dp1.cp2.tp1.ep2");
}

TEST(MeshOptionsTest, CombinationsThatDoNotFitAreNamed) {
  EXPECT_THAT(shape_of({.ranks = "six"}), StartsWith("ranks: \"six\" is neither"));
  EXPECT_THAT(shape_of({.ranks = "tp"}), StartsWith("ranks: \"tp\" is neither"));
  EXPECT_THAT(shape_of({.ranks = "4x"}), StartsWith("ranks: \"4x\" is neither"));
  EXPECT_THAT(shape_of({.ranks = "0"}), StartsWith("ranks: \"0\" is neither"));
  EXPECT_THAT(shape_of({.ranks = "tp2", .tp = 4}), StartsWith("tp: 4, but ranks says tp2"));
  EXPECT_THAT(shape_of({.ranks = "6", .tp = 4}), StartsWith("ranks: 6 is no multiple of tp 4"));
  EXPECT_THAT(shape_of({.ranks = "8", .tp = 2, .dp = 3}), StartsWith("dp: tp 2"));
  EXPECT_THAT(shape_of({.ep = 2, .dp = 3}), StartsWith("ep: 2 does not divide the 3 ranks"));
  EXPECT_THAT(shape_of({.tp = 0}), StartsWith("tp: 0 is too small"));
  EXPECT_THAT(shape_of({.sp = true}), StartsWith("sp: there are no tensor ranks"));
  EXPECT_THAT(shape_of({.cp_zig_zag = true}), StartsWith("cp_zig_zag: there are no context ranks"));
  EXPECT_THAT(shape_of({.pp_chunks = 2}), StartsWith("pp_chunks: there is one stage"));
  EXPECT_THAT(shape_of({.dp = 4096}), StartsWith("ranks: 4096 are more than"));
}

TEST(MeshOptionsTest, WhatTheModelCannotBeCutIntoIsNamed) {
  EXPECT_EQ(model_fault({.tp = 2}), "accepted");
  EXPECT_THAT(model_fault({.tp = 4}), HasSubstr("4 ranks do not divide o_groups 2"));
  EXPECT_THAT(model_fault({.ep = 3}), HasSubstr("3 ranks do not divide n_routed_experts 8"));
  EXPECT_THAT(model_fault({.pp = 8}), HasSubstr("4 layers are too few for 8 chunks"));
  EXPECT_THAT(model_fault({.dp = 5}, 4), StartsWith("dp: 5 data ranks are too many for the 4"));
}

}  // namespace
}  // namespace baleen::train
