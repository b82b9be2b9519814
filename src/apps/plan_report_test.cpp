#include "apps/plan_report.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cache/choice_table.h"
#include "weights/model_presets.h"

namespace baleen::apps {
namespace {

TEST(PlanReportTest, CountsTheRecordsOfChoicesWhereTheyAreAskedFor) {
  const ModelConfig config = weights::flash_config();
  PlanRequest request;
  request.memory_gib = 400.0;
  const PlanReport without = make_plan(config, request);
  EXPECT_FALSE(without.records.has_value());
  EXPECT_EQ(plan_text(without).find("records"), std::string::npos);
  EXPECT_FALSE(plan_json(without).contains("records"));

  request.record_choices = true;
  const PlanReport with = make_plan(config, request);
  ASSERT_TRUE(with.records.has_value());
  const cache::ChoiceLayout layout = cache::choice_layout(config);
  EXPECT_EQ(with.records->route_bytes, layout.route_bytes());
  EXPECT_GT(with.records->route_bytes, 0);
  EXPECT_GT(with.records->most_pick_bytes, 0);
  EXPECT_GE(with.records->most_page_bytes,
            256 * with.records->route_bytes + 255 * layout.pick_bytes(4096));
  EXPECT_EQ(with.records->most_bytes, with.sizes->full_pages * with.records->most_page_bytes);
  EXPECT_EQ(with.bytes.total(), without.bytes.total()) << "they lie beside the cache";
  EXPECT_EQ(plan_json(with).at("records").at("most_bytes").as_int64(), with.records->most_bytes);
  EXPECT_NE(plan_text(with).find("records of choices"), std::string::npos);

  request.memory_gib.reset();
  EXPECT_EQ(make_plan(config, request).records->most_bytes, 0) << "no cache was fitted";
}

TEST(PlanReportTest, DeviceMemoryIsTakenFromWhatTheCacheGets) {
  const ModelConfig config = weights::flash_config();
  PlanRequest request;
  request.memory_gib = 400.0;
  const PlanReport without = make_plan(config, request);
  EXPECT_FALSE(without.device.has_value());
  EXPECT_FALSE(plan_json(without).contains("device_bytes"));

  constexpr int64_t kNeeds = int64_t{3} << 30;
  request.device_needs = [](const ModelConfig&, const cache::CachePlanOptions&) { return kNeeds; };
  const PlanReport with = make_plan(config, request);
  ASSERT_TRUE(with.device.has_value());
  EXPECT_EQ(with.device->workspaces, kNeeds);
  EXPECT_EQ(with.device->weights, with.rank_weight_bytes);
  EXPECT_EQ(with.device->cache, with.bytes.total());
  constexpr int64_t kAll = int64_t{400} << 30;
  EXPECT_LE(with.device->total(), kAll);
  EXPECT_GE(with.device->total(), kAll - (int64_t{1} << 30)) << "filled up";
  EXPECT_LT(with.bytes.total(), without.bytes.total() - kNeeds);
  EXPECT_EQ(plan_json(with).at("device_bytes").at("total").as_int64(), with.device->total());
  EXPECT_NE(plan_text(with).find("device memory"), std::string::npos);

  request.memory_gib = 150.0;
  EXPECT_THROW(make_plan(config, request), ConfigError);
  request.memory_gib = 400.0;
  request.num_ranks = 2;
  EXPECT_THROW(make_plan(config, request), ConfigError);
}

}  // namespace
}  // namespace baleen::apps
