// The part of case H20 that is the packer's: labels are shifted once, inside each sample; prompts
// and last tokens are no targets' rows.

#include <fstream>
#include <map>
#include <sstream>

#include <ATen/ATen.h>
#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "train/packed_batch.h"

namespace baleen::rl {
namespace {

TEST(CaseH20PackingTest, LabelsAreShiftedOnceInsideEachSample) {
  std::ifstream file("tests/cases/H20_rl_batch_building.json");
  std::stringstream text;
  text << file.rdbuf();
  const boost::json::value all = boost::json::parse(text.str());
  const boost::json::array& labels = all.at("expected").at("labels").as_array();
  const boost::json::array& mask = all.at("expected").at("loss_mask").as_array();

  std::vector<train::Sample> samples;
  std::vector<int64_t> begin;  // of each sample in the case's packed arrays
  int64_t place = 0;
  for (const boost::json::value& one : all.at("input").at("samples").as_array()) {
    train::Sample& sample = samples.emplace_back();
    sample.number = static_cast<int64_t>(samples.size()) - 1;
    for (const boost::json::value& id : one.at("tokens").as_array()) {
      const bool prompt = sample.ids.size() < one.at("prompt_len").to_number<std::size_t>();
      sample.ids.push_back(id.to_number<int32_t>());
      sample.weights.push_back(prompt ? 0.0F : 1.0F);
    }
    begin.push_back(place);
    place += static_cast<int64_t>(sample.ids.size());
  }
  ASSERT_EQ(static_cast<std::size_t>(place), labels.size());

  const train::PackedBatch batch =
      train::pack(samples, {.weight = 5.0, .mtp_weight = 3.0, .samples = 2.0}, {});
  const auto targets = batch.main.targets.to(at::kLong).contiguous();
  const auto rows = batch.main.rows.contiguous();
  const auto ids = batch.ids.contiguous();
  std::map<int64_t, int64_t> label_at;
  for (int64_t r = 0; r < targets.size(0); ++r) {
    const train::PackedSample& packed =
        batch.samples[static_cast<std::size_t>(batch.main.samples[static_cast<std::size_t>(r)])];
    const int64_t position = batch.main.positions[static_cast<std::size_t>(r)];
    label_at[begin[static_cast<std::size_t>(packed.number)] + position] =
        targets.const_data_ptr<int64_t>()[r];
    // The row that predicts the label was fed the token before it.
    EXPECT_EQ(
        ids.const_data_ptr<int64_t>()[rows.const_data_ptr<int64_t>()[r]],
        samples[static_cast<std::size_t>(packed.number)].ids[static_cast<std::size_t>(position)]);
  }
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto found = label_at.find(static_cast<int64_t>(i));
    ASSERT_EQ(found != label_at.end(), mask[i].to_number<int>() == 1) << "position " << i;
    if (found != label_at.end()) {
      EXPECT_EQ(found->second, labels[i].to_number<int64_t>()) << "position " << i;
    }
  }
}

}  // namespace
}  // namespace baleen::rl
