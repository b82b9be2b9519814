// Losses of one's own on a mesh: values of all targets on every rank, gradients given per token,
// temperature, chunks of the head, choices taken again, another model's values.

#include <gtest/gtest.h>

#include "mesh/rank_tensors.h"
#include "train/mesh_jobs_test.h"
#include "train/mesh_trainer.h"
#include "train/nano_model.h"
#include "train/packed_forward.h"

namespace baleen::train {
namespace {

constexpr double kValueTolerance = 1e-10;
constexpr double kTemperature = 0.8;
constexpr LossDenominators kOnes{.weight = 1.0, .mtp_weight = 1.0};

TrainerConfig loss_config() {
  TrainerConfig config;
  config.objective.chunk_rows = 5;
  return config;
}

model::ModelParameters loss_nano(uint64_t seed) {
  return fresh_nano(nano_config({.o_groups = 4}), seed, at::kDouble);
}

/// A loss that is no sum over tokens: tanh of each sample's mean, and entropies; its gradient.
TokenGradients bent_loss(const PackedBatch& batch, const RowLogprobs& values) {
  at::Tensor logprobs = values.logprobs.detach().clone().requires_grad_(true);
  at::Tensor entropy = values.entropy.detach().clone().requires_grad_(true);
  const at::AutoGradMode with_gradients(true);
  at::Tensor total = entropy.square().sum() * 0.01;
  for (std::size_t sample = 0; sample < batch.samples.size(); ++sample) {
    std::vector<int64_t> own;
    for (std::size_t row = 0; row < batch.main.samples.size(); ++row) {
      if (batch.main.samples[row] == static_cast<int64_t>(sample)) {
        own.push_back(static_cast<int64_t>(row));
      }
    }
    if (!own.empty()) {
      const double weight = 1.0 + 0.1 * static_cast<double>(batch.samples[sample].number);
      total = total + weight * logprobs.index_select(0, at::tensor(own)).mean().tanh();
    }
  }
  total.backward();
  return {.logprobs = logprobs.grad(), .entropy = entropy.grad()};
}

struct LossOutcome {
  std::vector<SampleValues> values;
  ValuesByName gradients;
};

PackedForward forward_of(const model::ModelParameters& leaves,
                         const PackedBatch& batch,
                         Trainer& trainer,
                         ChoiceReplay* replay) {
  const PackedForwardOptions options{.numerics = trainer.config().objective.numerics,
                                     .tables = &trainer.tables(64)};
  return replay == nullptr ? packed_forward(leaves, batch, options)
                           : replayed_forward(leaves, batch, options, *replay, ReplayMode::kPlay);
}

/// By the plain forward of one rank.
LossOutcome loss_on_one_rank(const std::vector<Sample>& samples, ChoiceReplay* replay) {
  Trainer trainer(plain_masters(loss_nano(3), {.indexer = true}), loss_config());
  trainer.begin_step();
  const PackedBatch batch = pack(samples, kOnes, {.dtype = at::kDouble});
  const model::ModelParameters& leaves = trainer.masters().leaves();
  const PackedForward out = forward_of(leaves, batch, trainer, replay);
  const RowLogprobs values = row_logprobs(out.hidden,
                                          leaves.head,
                                          batch.main.targets,
                                          {.numerics = trainer.config().objective.numerics,
                                           .temperature = kTemperature,
                                           .entropy = true});
  const TokenGradients gradients = bent_loss(batch, values);
  ((values.logprobs * gradients.logprobs).sum() + (values.entropy * gradients.entropy).sum())
      .backward();
  LossOutcome outcome;
  for (const Sample& sample : samples) {
    const auto fed = static_cast<std::size_t>(sample.fed_tokens());
    outcome.values.push_back({.number = sample.number,
                              .logprobs = std::vector<double>(fed, 0.0),
                              .entropy = std::vector<double>(fed, 0.0)});
  }
  for (std::size_t row = 0; row < batch.main.samples.size(); ++row) {
    const PackedSample& packed = batch.samples[static_cast<std::size_t>(batch.main.samples[row])];
    SampleValues& own = outcome.values[static_cast<std::size_t>(packed.number)];
    const auto position = static_cast<std::size_t>(batch.main.positions[row]);
    own.logprobs[position] = values.logprobs[static_cast<int64_t>(row)].item<double>();
    own.entropy[position] = values.entropy[static_cast<int64_t>(row)].item<double>();
  }
  for (const TrainedTensor& tensor : trainer.masters().trained()) {
    outcome.gradients[tensor.info.name] = tensor.gradient.clone();
  }
  return outcome;
}

LossOutcome loss_on_mesh(const std::string& name,
                         const std::vector<Sample>& samples,
                         const ChoiceReplay* replay,
                         const model::ModelParameters* other = nullptr) {
  LossOutcome outcome;
  std::mutex mutex;
  const MeshJob job{
      .mesh_case = shape_named(name), .config = loss_config(), .freeze = {.indexer = true}};
  on_ranks(job, loss_nano(3), [&](MeshTrainer& trainer) {
    const StepCut cut = trainer.cut(samples, kOnes);
    MeshPassOptions options{.temperature = kTemperature, .replay = replay};
    if (other != nullptr) {
      const model::ModelParameters own =
          mesh::own_parameters(*other, trainer.mesh(), trainer.stages());
      options.params = &own;
      const std::vector<SampleValues> values = trainer.forward(cut, options);
      const std::lock_guard<std::mutex> lock(mutex);
      outcome.values = values;
      return;
    }
    const std::vector<SampleValues> before = trainer.forward(cut, options);
    trainer.begin_step();
    const std::vector<SampleValues> values = trainer.run(cut, options, bent_loss);
    std::vector<mesh::RankTensor> tensors;
    for (TrainedTensor& trained : trainer.trainer().masters().trained()) {
      tensors.push_back({.name = trained.info.name,
                         .sharding = mesh::shard_of(trained.info, trainer.mesh()).sharding,
                         .value = trained.value,
                         .gradient = trained.gradient});
    }
    mesh::sum_gradients(tensors, trainer.mesh());
    model::ModelParameters gradients = trainer.trainer().masters().values();
    std::size_t next = 0;
    model::for_each_parameter(gradients, [&](const model::ParameterInfo& info, at::Tensor& value) {
      if (next < tensors.size() && tensors[next].name == info.name) {
        value = tensors[next++].gradient;
      }
    });
    const model::ModelParameters whole =
        mesh::whole_parameters(gradients, trainer.mesh(), trainer.stages());
    const std::lock_guard<std::mutex> lock(mutex);
    // Operators have another form without gradients, whose last bits may differ.
    for (std::size_t i = 0; i < samples.size(); ++i) {
      for (std::size_t t = 0; t < values[i].logprobs.size(); ++t) {
        EXPECT_NEAR(before[i].logprobs[t], values[i].logprobs[t], kValueTolerance);
        EXPECT_NEAR(before[i].entropy[t], values[i].entropy[t], kValueTolerance);
      }
    }
    if (trainer.mesh().rank() == 0) {
      outcome.values = values;
      outcome.gradients = values_by_name(whole);
    } else if (!outcome.values.empty()) {
      for (std::size_t i = 0; i < samples.size(); ++i) {
        EXPECT_EQ(outcome.values[i].logprobs, values[i].logprobs);
      }
    }
  });
  return outcome;
}

void expect_equal_values(const LossOutcome& expected, const LossOutcome& found) {
  ASSERT_EQ(found.values.size(), expected.values.size());
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    EXPECT_EQ(found.values[i].number, expected.values[i].number);
    ASSERT_EQ(found.values[i].logprobs.size(), expected.values[i].logprobs.size());
    for (std::size_t t = 0; t < expected.values[i].logprobs.size(); ++t) {
      EXPECT_NEAR(found.values[i].logprobs[t], expected.values[i].logprobs[t], kValueTolerance);
      EXPECT_NEAR(found.values[i].entropy[t], expected.values[i].entropy[t], kValueTolerance);
    }
  }
}

void expect_equal_outcomes(const LossOutcome& expected, const LossOutcome& found) {
  expect_equal_values(expected, found);
  ValuesByName trained;
  for (const auto& [name, gradient] : expected.gradients) {
    trained[name] = found.gradients.at(name);
  }
  EXPECT_LT(largest_gap(expected.gradients, trained), 1e-9);
}

class MeshLossTest : public testing::TestWithParam<mesh::MeshCase> {};

TEST_P(MeshLossTest, ValuesAndGradientsEqualThoseOfOneRank) {
  static const LossOutcome kSingle = loss_on_one_rank(edge_samples(32), nullptr);
  expect_equal_outcomes(kSingle, loss_on_mesh(GetParam().name, edge_samples(32), nullptr));
}

INSTANTIATE_TEST_SUITE_P(All,
                         MeshLossTest,
                         testing::ValuesIn(mesh::all_mesh_shapes()),
                         [](const auto& shape) { return shape.param.name; });

TEST(MeshReplayTest, ChoicesOfAnotherModelAreTakenOnEveryAxis) {
  const std::vector<Sample> samples = edge_samples(32);
  const model::ModelParameters other = loss_nano(8);
  ChoiceReplay replay(other.config, {.routes = true, .picks = true});
  {
    const at::NoGradGuard no_grad;
    Trainer trainer(plain_masters(loss_nano(8)), loss_config());
    const PackedBatch batch = pack(samples, kOnes, {.dtype = at::kDouble});
    replayed_forward(
        other,
        batch,
        {.numerics = trainer.config().objective.numerics, .tables = &trainer.tables(64)},
        replay,
        ReplayMode::kRecord);
  }
  const LossOutcome plain = loss_on_one_rank(samples, nullptr);
  const LossOutcome single = loss_on_one_rank(samples, &replay);
  double moved = 0.0;  // by the choices, which differ
  for (std::size_t t = 0; t < single.values[11].logprobs.size(); ++t) {
    moved = std::max(moved, std::abs(single.values[11].logprobs[t] - plain.values[11].logprobs[t]));
  }
  EXPECT_GT(moved, 1e-3);
  for (const char* name :
       {"tp4_sp", "cp4_zigzag", "pp2_interleaved", "ep8", "tp2_cp2_ep2", "pp2_cp2_dp2"}) {
    SCOPED_TRACE(name);
    expect_equal_outcomes(single, loss_on_mesh(name, samples, &replay));
  }
}

TEST(MeshReplayTest, ValuesOfAnotherModelBesideTheTrainedOne) {
  const model::ModelParameters other = loss_nano(8);
  const LossOutcome expected = loss_on_mesh("dp2", edge_samples(32), nullptr, &other);
  const LossOutcome own = loss_on_one_rank(edge_samples(32), nullptr);
  EXPECT_GT(std::abs(expected.values[3].logprobs[2] - own.values[3].logprobs[2]), 1e-3);
  expect_equal_values(expected, loss_on_mesh("tp2_pp2_dp2", edge_samples(32), nullptr, &other));
}

}  // namespace
}  // namespace baleen::train
