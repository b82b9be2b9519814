// What training takes out of the middle of a forward, on ranks that split tokens and heads: scores
// of the indexer with their gradients, and the attention on entries summed over all heads.

#include "model/taps.h"

#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "mesh/mesh_model_for_tests.h"
#include "mesh/mesh_step.h"
#include "mesh/rank_tensors.h"
#include "model/stages.h"

namespace baleen::mesh {
namespace {

constexpr int64_t kRows = 2;
constexpr int64_t kTokens = 24;
constexpr std::size_t kLayer = 1;  // of ratio 4

struct TapsOfRows {
  at::Tensor scores;   // [tokens of the step, entries], 0 where invisible
  at::Tensor targets;  // likewise
};

model::ModelParameters indexer_leaves(model::ModelParameters params) {
  model::for_each_parameter(params, [](const model::ParameterInfo& info, at::Tensor& value) {
    if (value.defined() && info.name.find("indexer") != std::string::npos) {
      value = value.detach().clone().requires_grad_(true);
    }
  });
  return params;
}

/// Entries of the whole sequence per token, invisible ones 0.
at::Tensor visible_part(const at::Tensor& values, const model::SequenceGroup& group) {
  const at::Tensor position = at::arange(group.tokens) + group.first_position;
  const at::Tensor seen = (position + 1).floor_divide(4).unsqueeze(1);
  const at::Tensor hidden = at::arange(values.size(2)).unsqueeze(0).ge(seen);
  return at::constant_pad_nd(values.masked_fill(hidden, 0.0), {0, kTokens / 4 - values.size(2)})
      .flatten(0, 1);
}

/// Runs the blocks up to the layer and a loss of its scores, weighted by token.
TapsOfRows run(const model::ModelParameters& leaves,
               const model::StepContext& made_step,
               const at::Tensor& token_index) {
  model::StepContext step = made_step;
  model::Taps taps;
  taps.index_scores = true;
  taps.entry_attention = true;
  taps.layers.resize(step.config.layers.size());
  step.taps = &taps;
  model::run_blocks(leaves, model::embed_stage(leaves, step), 0, kLayer + 1, step);
  const model::LayerTaps& layer = taps.layers[kLayer];
  const auto of_all_groups = [&](const std::vector<at::Tensor>& values) {
    std::vector<at::Tensor> rows;
    for (std::size_t g = 0; g < step.groups.size(); ++g) {
      rows.push_back(visible_part(values.at(g), step.groups[g]));
    }
    return at::cat(rows, 0);
  };
  const at::Tensor scores = of_all_groups(layer.index_scores);
  const at::Tensor weights = (token_index.unsqueeze(1) * 0.37 + at::arange(kTokens / 4)).cos();
  (scores * weights).sum().backward();
  TapsOfRows out;
  out.scores = scores.detach();
  out.targets = of_all_groups(layer.entry_attention);
  return out;
}

TEST(MeshTapsTest, ScoresTargetsAndTheirGradientsEqualThoseOfOneRank) {
  const model::ModelParameters whole = nano_mesh_model(at::kDouble);
  const ops::Numerics numerics = ops::Numerics::plain();
  const model::RopeTables tables =
      model::make_rope_tables(whole.config, kTokens, whole.embed, numerics);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{3});
  const at::Tensor ids =
      at::randint(0, whole.config.vocab_size, {kRows * kTokens}, generator, at::kLong);

  const model::ModelParameters plain = indexer_leaves(whole);
  const model::StepContext plain_step(
      whole.config, numerics, tables, ids, {{.batch = kRows, .tokens = kTokens}});
  const TapsOfRows single = run(plain, plain_step, at::arange(kRows * kTokens));
  const double score_scale = single.scores.abs().max().item<double>();
  ASSERT_GT(score_scale, 0.0);
  ASSERT_GT(single.targets.abs().max().item<double>(), 0.0);

  for (const comm::MeshShape& shape :
       std::vector<comm::MeshShape>{{.tp = 2},
                                    {.tp = 2, .sequence_parallel = true},
                                    {.cp = 2},
                                    {.cp = 2, .tp = 2, .sequence_parallel = true}}) {
    SCOPED_TRACE(shape.name());
    comm::run_ranks(shape.world_size(), {}, [&](comm::World& world) {
      at::set_num_threads(1);
      const comm::Mesh mesh(world, shape);
      const StageSplit stages = StageSplit::even(4, 1, 1, true);
      model::ModelParameters leaves = indexer_leaves(own_parameters(whole, mesh, stages));
      const TokenLayout layout({{.batch = kRows, .samples = {kTokens}}},
                               {.context_ranks = shape.cp,
                                .tensor_ranks = shape.sequence_parallel ? shape.tp : 1,
                                .zig_zag = shape.cp > 1 && shape.tp > 1});
      const StepPlans plans(layout, whole.config, mesh);
      const MeshStep parallel(plans, whole.config, numerics, tables, ids);
      const at::Tensor index = layout.token_index(plans.rank());
      const TapsOfRows own = run(leaves, parallel.step(), index);
      EXPECT_LT((own.scores - single.scores.index_select(0, index)).abs().max().item<double>(),
                1e-12 * score_scale);
      EXPECT_LT((own.targets - single.targets.index_select(0, index)).abs().max().item<double>(),
                1e-12);
      std::vector<RankTensor> tensors = rank_tensors(leaves, mesh, stages);
      sum_gradients(tensors, mesh);
      std::map<std::string, at::Tensor> expected;
      model::ModelParameters named = plain;
      model::for_each_parameter(named, [&](const model::ParameterInfo& info, at::Tensor& value) {
        if (value.grad().defined()) {
          expected[info.name] = value.grad();
        }
      });
      for (const RankTensor& tensor : tensors) {
        if (const auto found = expected.find(tensor.name); found != expected.end()) {
          EXPECT_LT((tensor.gradient - found->second).abs().max().item<double>(),
                    1e-11 * found->second.abs().max().item<double>())
              << tensor.name;
        }
      }
      EXPECT_GE(expected.size(), 6U);
    });
  }
}

}  // namespace
}  // namespace baleen::mesh
