// Replayed choices: what an engine recorded, or a record that was made up, is what the trainer's
// forward and its second run take, wherever a sample lies; records that do not fit are refused.

#include "train/choice_replay.h"

#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "train/choice_replay_test.h"

namespace baleen::train {
namespace {

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST_F(ChoiceReplayTest, RecordsOfTheServingModelChangeNoBit) {
  const std::vector<Sample> samples = replay_samples();
  model::Model served = serving();
  ChoiceReplay replay(masters_.config(), {});
  for (const Sample& sample : samples) {
    replay.add(sample, served_records(served, sample.ids, 7));
  }
  const Outcome off = run({samples}, replay, ReplayMode::kOff);
  ReplayAgreement agreement;
  const Outcome play = run({samples}, replay, ReplayMode::kPlay, 1, Recompute::kNone, &agreement);
  EXPECT_EQ(play.logprobs, off.logprobs);
  EXPECT_TRUE(at::equal(play.gradients, off.gradients));
  EXPECT_EQ(agreement.route_agreement(), 1.0);
  EXPECT_EQ(agreement.pick_jaccard(), 1.0);
  EXPECT_GT(agreement.route_margin(), 0.0);
  EXPECT_EQ(agreement.num_routes, 3.0 * static_cast<double>(replay.num_tokens()));
  EXPECT_GT(agreement.num_sets, 100.0);

  // What the trainer records for itself is the same, bytes included.
  ChoiceReplay own(masters_.config(), {});
  const Outcome recorded = run({samples}, own, ReplayMode::kRecord, 8);
  EXPECT_EQ(recorded.logprobs, off.logprobs);
  for (const Sample& sample : samples) {
    EXPECT_EQ(own.records_of(sample.number), replay.records_of(sample.number)) << sample.number;
  }
}

TEST_F(ChoiceReplayTest, ARecordIsFoundWhereverItsSampleLies) {
  const std::vector<Sample> samples = replay_samples();
  ChoiceReplay replay(masters_.config(), {});
  for (const Sample& sample : samples) {
    replay.add(
        sample,
        made_up_records(replay.layout(), sample.number, static_cast<int32_t>(sample.fed_tokens())));
  }
  std::vector<std::vector<Sample>> single;
  for (const Sample& sample : samples) {
    single.push_back({sample});
  }
  const Outcome expected = run(single, replay, ReplayMode::kPlay);
  ChoiceReplay none(masters_.config(), {});
  EXPECT_NE(run(single, none, ReplayMode::kOff).logprobs, expected.logprobs);
  for (const int64_t pad : {1, 4, 8, 16}) {
    EXPECT_EQ(run({samples}, replay, ReplayMode::kPlay, pad).logprobs, expected.logprobs) << pad;
  }
  std::vector<Sample> turned = samples;
  std::reverse(turned.begin(), turned.end());
  EXPECT_EQ(run({turned}, replay, ReplayMode::kPlay, 8).logprobs, expected.logprobs);
  for (const int64_t tokens : {60, 100}) {
    const auto batches = micro_batches(samples, tokens);
    ASSERT_GT(batches.size(), 1U);
    EXPECT_EQ(run(batches, replay, ReplayMode::kPlay, 8).logprobs, expected.logprobs) << tokens;
  }
  // The second run of a block takes the same records.
  const Outcome kept = run({samples}, replay, ReplayMode::kPlay, 8);
  const Outcome again = run({samples}, replay, ReplayMode::kPlay, 8, Recompute::kBlock);
  EXPECT_EQ(again.logprobs, kept.logprobs);
  EXPECT_TRUE(at::equal(again.gradients, kept.gradients));
}

TEST_F(ChoiceReplayTest, GivenChoicesAreThoseOfTheirSampleAndPosition) {
  const std::vector<Sample> samples = replay_samples();
  ChoiceReplay replay(masters_.config(), {});
  std::map<int64_t, cache::ChoiceRecords> records;
  for (const Sample& sample : samples) {
    const auto fed = static_cast<int32_t>(sample.fed_tokens());
    records[sample.number] = made_up_records(replay.layout(), sample.number, fed);
    replay.add(sample, records[sample.number]);
  }
  const PackedBatch batch = packed(samples, 8);
  const model::ChoicesByLayer given = replay.given(batch);
  ASSERT_EQ(given.size(), masters_.config().layers.size());
  EXPECT_FALSE(given[0].experts.defined()) << "the table chooses";
  EXPECT_TRUE(given[2].picks.empty()) << "no indexer";
  std::size_t next = 0;
  for (std::size_t g = 0; g < batch.groups.size(); ++g) {
    for (int64_t b = 0; b < batch.groups[g].batch; ++b) {
      const PackedSample& sample = batch.samples[next++];
      const cache::ChoiceReader reader(replay.layout(), records.at(sample.number));
      for (int64_t t = 0; t < batch.groups[g].tokens; ++t) {
        const bool real = t < sample.tokens;
        for (std::size_t i = 0; i < 3; ++i) {
          const at::Tensor row = given[i + 1].experts[sample.row_begin + t];
          const std::vector<int32_t> found = {row[0].item<int32_t>(), row[1].item<int32_t>()};
          EXPECT_NE(found[0], found[1]);
          if (real) {
            EXPECT_EQ(found, reader.experts(static_cast<int32_t>(t), i));
          }
        }
        for (std::size_t i = 0; i < 2; ++i) {
          const at::Tensor& mask = given[i == 0 ? 1 : 3].picks.at(g);
          const auto visible = static_cast<int32_t>((t + 1) / 4);
          if (!mask.defined()) {
            EXPECT_LE(batch.groups[g].tokens / 4, 2);
            continue;
          }
          std::vector<int32_t> found;
          for (int32_t e = 0; e < mask.size(2); ++e) {
            if (mask[b][t][e].item<bool>()) {
              found.push_back(e);
            }
          }
          EXPECT_EQ(static_cast<int32_t>(found.size()), std::min(visible, 2));
          if (real) {
            EXPECT_EQ(found, reader.picks(static_cast<int32_t>(t), i));
          }
        }
      }
    }
  }
}

TEST_F(ChoiceReplayTest, ForcedRoutesEqualAModelThatRoutesByTable) {
  // The record of a token is a function of its id, so that a table can say the same.
  const std::vector<Sample> samples = replay_samples();
  const auto expert_of = [](int32_t id, std::size_t layer) {
    return static_cast<int32_t>((id * 3 + static_cast<int32_t>(layer) * 2) % 7);
  };
  ChoiceReplay replay(masters_.config(), {.routes = true, .picks = false});
  for (const Sample& sample : samples) {
    cache::ChoiceRecords records;
    records.count = static_cast<int32_t>(sample.fed_tokens());
    for (int64_t t = 0; t < sample.fed_tokens(); ++t) {
      for (std::size_t layer = 0; layer < 3; ++layer) {
        const int32_t first = expert_of(sample.ids[static_cast<std::size_t>(t)], layer);
        records.routes.push_back(static_cast<uint8_t>(first));
        records.routes.push_back(static_cast<uint8_t>(first + 1));
      }
    }
    replay.add(sample, records);
  }
  const Outcome replayed = run({samples}, replay, ReplayMode::kPlay);

  model::ModelParameters tabled = masters_.leaves();
  for (std::size_t layer = 0; layer < 3; ++layer) {
    tabled.config.layers[layer + 1].hash_routed = true;
    tabled.blocks[layer + 1].spec.hash_routed = true;
    at::Tensor table = at::empty({32, 2}, at::kLong);
    for (int32_t id = 0; id < 32; ++id) {
      table[id][0] = expert_of(id, layer) + 1;  // as listed: not ascending
      table[id][1] = expert_of(id, layer);
    }
    tabled.blocks[layer + 1].moe.tid2eid = table;
  }
  masters_.zero_gradients();
  const PackedBatch batch = packed(samples);
  const PackedForward out = packed_forward(tabled, batch, options());
  const at::Tensor logprobs =
      row_logprobs(out.hidden, tabled.head, batch.main.targets, {.numerics = numerics_}).logprobs;
  logprobs.sum().backward();
  std::vector<double> expected;
  for (const PackedSample& sample : batch.samples) {
    const std::vector<double>& part = replayed.logprobs.at(sample.number);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  for (std::size_t row = 0; row < expected.size(); ++row) {
    ASSERT_EQ(logprobs[static_cast<int64_t>(row)].item<double>(), expected[row]) << row;
  }
  // Lists in another order add gradients up in another order.
  EXPECT_LT((masters_.flat_gradients() - replayed.gradients).abs().max().item<double>(), 1e-3);
  EXPECT_GT(replayed.gradients.abs().max().item<double>(), 0.1);
}

TEST_F(ChoiceReplayTest, AShortContextStoresNoPicksAndChangesNothing) {
  // Two entries are picked of at most two: up to position 10.
  const std::vector<Sample> samples = {some_sample(1, 12, 32), some_sample(2, 5, 32)};
  model::Model served = serving();
  ChoiceReplay replay(masters_.config(), {.routes = false, .picks = true});
  for (const Sample& sample : samples) {
    replay.add(sample, served_records(served, sample.ids, 100));
  }
  EXPECT_EQ(replay.num_bytes(), 0);
  EXPECT_EQ(replay.num_tokens(), 15);
  const Outcome off = run({samples}, replay, ReplayMode::kOff);
  const Outcome play = run({samples}, replay, ReplayMode::kPlay);
  EXPECT_EQ(play.logprobs, off.logprobs);
  EXPECT_TRUE(at::equal(play.gradients, off.gradients));
  // One token further there is something to choose.
  const Sample longer = some_sample(3, 13, 32);
  replay.add(longer, served_records(served, longer.ids, 100));
  EXPECT_EQ(replay.num_bytes(), 2 * cache::coded_picks_bytes(3, 2));
}

TEST_F(ChoiceReplayTest, MissingAndDamagedRecordsAreNamedBeforeAnythingRuns) {
  const Sample sample = some_sample(7, 20, 32);
  ChoiceReplay replay(masters_.config(), {});
  const cache::ChoiceRecords good = made_up_records(replay.layout(), 7, 19);
  const auto refused = [&](const std::function<void(cache::ChoiceRecords&)>& damage) {
    cache::ChoiceRecords bad = good;
    damage(bad);
    return error_of([&] { replay.add(sample, bad); });
  };
  EXPECT_EQ(refused([](cache::ChoiceRecords&) {}), "");
  replay.clear();
  EXPECT_NE(error_of([&] { replay.require({&sample, 1}); }).find("sample 7: no recorded choices"),
            std::string::npos);
  EXPECT_NE(error_of([&] { replay.given(packed({sample})); }).find("sample 7"), std::string::npos);
  EXPECT_NE(refused([](cache::ChoiceRecords& r) { r = {}; }).find("no recorded choices"),
            std::string::npos);
  const std::string short_one =
      error_of([&] { replay.add(sample, made_up_records(replay.layout(), 7, 18)); });
  EXPECT_NE(short_one.find("[18, 3, 2]"), std::string::npos) << short_one;
  EXPECT_NE(short_one.find("[19, 3, 2]"), std::string::npos) << short_one;
  EXPECT_NE(
      refused([](cache::ChoiceRecords& r) { r.first_position = 1; }).find("positions 1 to 20"),
      std::string::npos);
  EXPECT_NE(
      refused([](cache::ChoiceRecords& r) { r.routes.pop_back(); }).find("113 bytes of routes"),
      std::string::npos);
  EXPECT_NE(refused([](cache::ChoiceRecords& r) { r.picks.pop_back(); }).find("of picked entries"),
            std::string::npos);
  // Position 2, layer 3: routes at (2 * 3 + 2) * 2.
  EXPECT_NE(refused([](cache::ChoiceRecords& r) {
              r.routes[17] = r.routes[16];
            }).find("position 2, layer 3"),
            std::string::npos);
  EXPECT_NE(refused([](cache::ChoiceRecords& r) { r.routes[17] = 8; }).find("expert 8"),
            std::string::npos);
  EXPECT_NE(
      refused([](cache::ChoiceRecords& r) { r.picks[1] = 0xFF; }).find("position 11, layer 1"),
      std::string::npos);
  // A record of another length than what is fed now.
  replay.add(sample, good);
  EXPECT_NE(error_of([&] {
              replay.require(std::vector<Sample>{some_sample(7, 15, 32)});
            }).find("19 tokens, but 14 are fed"),
            std::string::npos);
  EXPECT_NE(error_of([] { replay_parts_by_name("all"); }).find("none, routes, picks, both"),
            std::string::npos);
}

TEST_F(ChoiceReplayTest, FallingThroughLeavesTheRecords) {
  const std::vector<Sample> samples = {some_sample(7, 30, 32)};
  ChoiceReplay replay(masters_.config(), {});
  replay.add(samples[0], made_up_records(replay.layout(), 7, 29));
  const cache::ChoiceRecords before = replay.records_of(7);
  const Outcome own = run({samples}, replay, ReplayMode::kOff);
  const Outcome through = run({samples}, replay, ReplayMode::kFallThrough);
  EXPECT_EQ(through.logprobs, own.logprobs);
  EXPECT_EQ(replay.records_of(7), before);
  EXPECT_NE(run({samples}, replay, ReplayMode::kPlay).logprobs, own.logprobs);
}

TEST_F(ChoiceReplayTest, ExactTiesAreBrokenAlikeByEngineAndTrainer) {
  // Every index score is zero, and every expert has the scores of all: only the tie rule chooses.
  model::ModelParameters shown = masters_.leaves();
  for (model::BlockParameters& block : shown.blocks) {
    const at::NoGradGuard no_grad;
    block.moe.gate_weight.zero_();
    if (block.attention.indexer) {
      block.attention.indexer->weights_proj.zero_();
    }
  }
  const std::vector<Sample> samples = replay_samples();
  model::Model served = serving();
  ChoiceReplay own(masters_.config(), {});
  const Outcome free = run({samples}, own, ReplayMode::kRecord, 16);
  ChoiceReplay engine(masters_.config(), {});
  for (const Sample& sample : samples) {
    engine.add(sample, served_records(served, sample.ids, sample.ids.size() / 2));
    EXPECT_EQ(engine.records_of(sample.number), own.records_of(sample.number)) << sample.number;
  }
  const cache::ChoiceReader reader(engine.layout(), engine.records_of(samples.back().number));
  EXPECT_EQ(reader.experts(70, 0), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(reader.picks(70, 1), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(run({samples}, engine, ReplayMode::kPlay).logprobs, free.logprobs);
}

}  // namespace
}  // namespace baleen::train
