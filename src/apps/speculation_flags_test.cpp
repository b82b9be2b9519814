#include "apps/speculation_flags.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "weights/model_presets.h"

namespace baleen::apps {
namespace {

ModelConfig config_with_mtp(int64_t num_blocks) {
  ModelConfig config = weights::tiny_config();
  config.num_nextn_predict_layers = num_blocks;
  return config;
}

TEST(SpeculationFlagsTest, AutoDraftsWhereThereIsAnMtpBlock) {
  const SpeculationFlags flags;
  const runner::DraftOptions drafts = flags.resolve(config_with_mtp(1), false);
  EXPECT_EQ(drafts.max_drafts, 3);
  EXPECT_EQ(drafts.sampling, runner::DraftSampling::kCoupled);
  EXPECT_EQ(drafts.simulate_accept_length, 0.0);
  EXPECT_EQ(flags.resolve(config_with_mtp(0), false).max_drafts, 0);
  EXPECT_EQ(flags.resolve(config_with_mtp(1), true).max_drafts, 0);
}

TEST(SpeculationFlagsTest, NoneDraftsNothing) {
  SpeculationFlags flags;
  flags.algorithm = "none";
  EXPECT_EQ(flags.resolve(config_with_mtp(1), false).max_drafts, 0);
}

TEST(SpeculationFlagsTest, EagleIsRefusedWhereItWouldAcceptNothing) {
  SpeculationFlags flags;
  flags.algorithm = "EAGLE";
  flags.num_steps = 8;
  flags.sampling = "rejection";
  const runner::DraftOptions drafts = flags.resolve(config_with_mtp(1), false);
  EXPECT_EQ(drafts.max_drafts, 8);
  EXPECT_EQ(drafts.sampling, runner::DraftSampling::kRejection);
  EXPECT_THROW(flags.resolve(config_with_mtp(0), false), ConfigError);
  EXPECT_THROW(flags.resolve(config_with_mtp(1), true), ConfigError);
}

TEST(SpeculationFlagsTest, FlagsThatContradictEachOtherAreRefused) {
  SpeculationFlags flags;
  flags.num_draft_tokens = 4;
  EXPECT_EQ(flags.resolve(config_with_mtp(1), false).max_drafts, 3);
  flags.num_draft_tokens = 5;
  EXPECT_THROW(flags.resolve(config_with_mtp(1), false), ConfigError);
  flags.num_draft_tokens = 0;
  flags.simulate_accept_length = 4.0;
  EXPECT_EQ(flags.resolve(config_with_mtp(1), false).simulate_accept_length, 4.0);
  flags.simulate_accept_length = 4.5;
  EXPECT_THROW(flags.resolve(config_with_mtp(1), false), ConfigError);
  flags.simulate_accept_length = 2.0;
  flags.algorithm = "none";  // nothing is drafted, so nothing can be simulated
  EXPECT_THROW(flags.resolve(config_with_mtp(1), false), ConfigError);
}

}  // namespace
}  // namespace baleen::apps
