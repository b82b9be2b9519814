// Which rank holds which tokens, and what it wants of others: the published example of a row of
// 1024 tokens on four ranks, and every cut of packed rows.

#include <map>
#include <mutex>
#include <set>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/thread_world.h"
#include "mesh/mesh_model_for_tests.h"
#include "mesh/mesh_step.h"
#include "mesh/shard_spec.h"
#include "mesh/step_plans.h"
#include "mesh/token_layout.h"

namespace baleen::mesh {
namespace {

TEST(TokenLayoutTest, EveryTokenIsOnOneRankHoweverRowsAreCut) {
  const std::vector<TokenRow> rows = {{.batch = 2, .samples = {24}},
                                      {.batch = 1, .samples = {10, 4, 10}}};
  for (const int cp : {1, 2, 3}) {
    for (const int tp : {1, 2}) {
      for (const bool zig_zag : {false, true}) {
        const TokenLayout layout(rows,
                                 {.context_ranks = cp, .tensor_ranks = tp, .zig_zag = zig_zag});
        EXPECT_EQ(layout.num_tokens(), 72);
        EXPECT_EQ(layout.num_samples(), 4);
        std::multiset<int64_t> tokens;
        std::multiset<int64_t> ids;
        for (int rank = 0; rank < layout.num_ranks(); ++rank) {
          const at::Tensor index = layout.token_index(rank);
          tokens.insert(index.data_ptr<int64_t>(), index.data_ptr<int64_t>() + index.numel());
          const auto own = layout.row_ids(layout.pieces(rank));
          ids.insert(own.begin(), own.end());
          EXPECT_EQ(own.size(), static_cast<std::size_t>(index.numel()));
        }
        EXPECT_EQ(tokens.size(), 72U);
        EXPECT_EQ(std::set<int64_t>(tokens.begin(), tokens.end()).size(), 72U);
        EXPECT_EQ(std::set<int64_t>(ids.begin(), ids.end()).size(), 72U);
        EXPECT_EQ(*ids.rbegin(), 71);
      }
    }
  }
}

TEST(TokenLayoutTest, PiecesOfPackedRowsKeepPositionsOfTheirSamples) {
  const TokenLayout layout({{.batch = 1, .samples = {10, 6}}}, {.context_ranks = 2});
  ASSERT_EQ(layout.pieces(0).size(), 1U);
  EXPECT_EQ(layout.pieces(0)[0].tokens, 8);
  ASSERT_EQ(layout.pieces(1).size(), 2U);
  EXPECT_EQ(layout.pieces(1)[0].first_position, 8);
  EXPECT_EQ(layout.pieces(1)[0].tokens, 2);
  EXPECT_EQ(layout.pieces(1)[1].first_position, 0);
  EXPECT_EQ(layout.pieces(1)[1].sample, 1);
  EXPECT_TRUE(at::equal(layout.token_index(1), at::arange(8, 16)));
}

TEST(TokenLayoutTest, ZigZagPairsEarlyAndLatePieces) {
  const TokenLayout layout({{.batch = 1, .samples = {16}}},
                           {.context_ranks = 2, .tensor_ranks = 2, .zig_zag = true});
  const std::vector<TokenPiece>& core = layout.core_pieces(1);
  ASSERT_EQ(core.size(), 2U);
  EXPECT_EQ(core[0].first_position, 0);
  EXPECT_EQ(core[1].first_position, 12);
  EXPECT_TRUE(at::equal(layout.token_index(1), at::tensor({2, 3, 14, 15}, at::kLong)));
  EXPECT_TRUE(at::equal(layout.token_index(2), at::tensor({4, 5, 8, 9}, at::kLong)));
}

TEST(TokenLayoutTest, RowsTooShortForTheRanksAreRefused) {
  EXPECT_THROW(TokenLayout({{.batch = 1, .samples = {3}}}, {.context_ranks = 4}), ConfigError);
  EXPECT_THROW(TokenLayout({{.batch = 1, .samples = {3}}}, {.tensor_ranks = 4}), ConfigError);
  EXPECT_THROW(TokenLayout({{.batch = 1, .samples = {4, 0}}}, {}), ConfigError);
}

TEST(StepPlansTest, FourRanksOf1024TokensOwnAndSeeThePublishedEntries) {
  ModelConfig config = nano_mesh_config();
  config.sliding_window = 128;
  config.layers[1] = {LayerKind::kC4, 4, false};
  config.layers[2] = {LayerKind::kC128, 128, false};
  const TokenLayout layout({{.batch = 1, .samples = {1024}}}, {.context_ranks = 4});
  comm::run_ranks(4, {}, [&](comm::World& world) {
    const comm::Mesh mesh(world, {.cp = 4});
    const StepPlans plans(layout, config, mesh);
    const int64_t rank = plans.rank();
    const EntryPlan& fine = plans.entries(4, true);
    EXPECT_EQ(fine.closing[0].first_entry, 64 * rank);
    EXPECT_EQ(fine.closing[0].num_entries, 64);
    EXPECT_EQ(fine.closing[0].halo_rows, rank == 0 ? 0 : 4);  // the carry half of the group before
    EXPECT_EQ(fine.closing[0].first_position, rank == 0 ? 0 : 256 * rank - 4);
    EXPECT_TRUE(fine.carry_only);
    EXPECT_EQ(fine.wanted[0].visible, 64 * (rank + 1));  // by the last own token
    const EntryPlan& coarse = plans.entries(128, false);
    EXPECT_EQ(coarse.closing[0].first_entry, 2 * rank);
    EXPECT_EQ(coarse.closing[0].num_entries, 2);
    EXPECT_EQ(coarse.closing[0].halo_rows, 0);
    EXPECT_FALSE(coarse.halo->is_needed());
    EXPECT_EQ(coarse.wanted[0].visible, 2 * (rank + 1));
    EXPECT_EQ(plans.window().num_wanted(), 256 + (rank == 0 ? 0 : 127));
  });
}

TEST(MeshStepTest, ContextRanksSendWindowRowsCarryHalvesAndEntriesAlone) {
  // The published example at the published widths: 127 raw rows and 4 carry halves of values and
  // gates, main and index, to the next rank; every entry to the ranks behind it, and nothing else.
  ModelConfig config = nano_mesh_config();
  config.sliding_window = 128;
  config.layers[1] = {LayerKind::kC4, 4, false};
  config.layers[2] = {LayerKind::kC4, 4, false};
  const int64_t width = 512;
  const int64_t index_width = 128;
  const TokenLayout layout({{.batch = 1, .samples = {1024}}}, {.context_ranks = 4});
  const ops::Numerics numerics = ops::Numerics::plain();
  const at::Tensor all_kv = at::arange(1024 * width, at::kFloat).view({1024, width});
  comm::run_ranks(4, {}, [&](comm::World& world) {
    at::set_num_threads(1);
    const comm::Mesh mesh(world, {.cp = 4});
    const StepPlans plans(layout, config, mesh);
    const model::RopeTables tables = model::make_rope_tables(
        config, 1024, at::empty({0}, at::TensorOptions(at::kFloat)), numerics);
    const MeshStep parallel(plans, config, numerics, tables, at::zeros({1024}, at::kLong));
    const int64_t rank = plans.rank();
    const at::Tensor kv = all_kv.narrow(0, 256 * rank, 256);
    const at::Tensor seen = parallel.window_rows(kv)[0];
    const int64_t before = rank == 0 ? 0 : 127;
    EXPECT_TRUE(at::equal(seen[0], all_kv.narrow(0, 256 * rank - before, 256 + before)));

    const auto column = [&](int64_t channels) {
      return at::arange(256 * rank, 256 * (rank + 1), at::kFloat)
          .unsqueeze(1)
          .repeat({1, channels});
    };
    const auto pooling = parallel.pooling_rows(
        {column(2 * width), column(2 * width), column(2 * index_width), column(2 * index_width)},
        4,
        true);
    const at::Tensor rows = pooling[0].rows[3][0];
    EXPECT_EQ(rows.size(0), 256 + (rank == 0 ? 0 : 4));
    EXPECT_EQ(rows[0][0].item<float>(), static_cast<float>(rank == 0 ? 0 : 256 * rank - 4));
    const at::Tensor own = at::full({1, 64, width + index_width}, 1.0F * static_cast<float>(rank));
    const at::Tensor entries = parallel.shared_entries({own}, 4, true, width)[0];
    EXPECT_EQ(entries.size(1), 64 * (rank + 1));
    EXPECT_EQ(entries[0][64 * rank][0].item<float>(), static_cast<float>(rank));

    const int64_t halo = 127 * width + 4 * 2 * (width + index_width);
    const int64_t expected = (rank < 3 ? halo : 0) + (3 - rank) * 64 * (width + index_width);
    EXPECT_EQ(mesh.group(comm::Axis::kSequence).bytes_contributed(), expected * 4);
  });
}

TEST(StepPlansTest, CutsThroughAGroupBringItsWholeRows) {
  const TokenLayout layout({{.batch = 2, .samples = {22}}}, {.context_ranks = 2});  // cut at 11
  comm::run_ranks(2, {}, [&](comm::World& world) {
    const comm::Mesh mesh(world, {.cp = 2});
    const StepPlans plans(layout, nano_mesh_config(), mesh);
    const EntryPlan& fine = plans.entries(4, true);
    EXPECT_FALSE(fine.carry_only);
    if (plans.rank() == 1) {  // closes entries 2 (tokens 8..11), 3 and 4; 2 needs tokens 4..10
      EXPECT_EQ(fine.closing[0].first_entry, 2);
      EXPECT_EQ(fine.closing[0].num_entries, 3);
      EXPECT_EQ(fine.closing[0].first_position, 4);
      EXPECT_EQ(fine.closing[0].halo_rows, 7);
      EXPECT_EQ(fine.halo->num_wanted(), 14);
    }
  });
}

TEST(StepPlansTest, ALayoutForOtherRanksIsRefused) {
  const TokenLayout layout({{.batch = 1, .samples = {16}}}, {.context_ranks = 2});
  comm::run_ranks(2, {}, [&](comm::World& world) {
    const comm::Mesh mesh(world, {.tp = 2});
    EXPECT_THROW(StepPlans(layout, nano_mesh_config(), mesh), ConfigError);
  });
}

TEST(ShardSpecTest, PartsOfAllRanksMakeTheWholeModel) {
  const model::ModelParameters whole = nano_mesh_model(at::kDouble);
  const comm::MeshShape shape{.pp = 2, .dp = 2, .tp = 2, .ep = 4, .sequence_parallel = true};
  validate(shape, whole.config);
  std::mutex mutex;
  std::map<std::string, int64_t> holders;  // numbers held over all ranks
  comm::run_ranks(shape.world_size(), {}, [&](comm::World& world) {
    const comm::Mesh mesh(world, shape);
    const StageSplit stages = StageSplit::even(4, 2, 1, true);
    model::ModelParameters own = own_parameters(whole, mesh, stages);
    model::ModelParameters expected = whole;
    std::map<std::string, at::Tensor> by_name;
    model::for_each_parameter(expected, [&](const model::ParameterInfo& info, at::Tensor& value) {
      by_name[info.name] = value;
    });
    model::for_each_parameter(own, [&](const model::ParameterInfo& info, at::Tensor& value) {
      if (!value.defined()) {
        return;
      }
      EXPECT_TRUE(at::equal(whole_tensor(value, shard_of(info, mesh), mesh), by_name[info.name]))
          << info.name;
      const std::lock_guard<std::mutex> lock(mutex);
      holders[info.name] += value.numel();
    });
  });
  model::ModelParameters named = whole;
  model::for_each_parameter(named, [&](const model::ParameterInfo& info, at::Tensor& value) {
    // Four ranks of a stage: tensors cut in two are there twice, experts once, others four times.
    int64_t copies = info.role == model::ParameterRole::kExpertMatrix ? 1 : 4;
    if (info.role == model::ParameterRole::kSink ||
        info.role == model::ParameterRole::kOutputHead ||
        info.role == model::ParameterRole::kOutputLatent || info.name.ends_with("wo_b.weight") ||
        info.name.ends_with("attn.wq_b.weight")) {
      copies = 2;
    } else if (info.role == model::ParameterRole::kEmbedding) {
      copies = 4;  // cut in two, on both stages
    }
    EXPECT_EQ(holders[info.name], copies * value.numel()) << info.name;
  });
}

TEST(ShardSpecTest, ModelsThatCannotBeCutAreRefusedNamingTheKey) {
  const auto text_of = [](const comm::MeshShape& shape) {
    try {
      validate(shape, nano_mesh_config());
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(text_of({.tp = 4}), "");
  EXPECT_NE(text_of({.tp = 3}).find("tp: 3 ranks do not divide o_groups 4"), std::string::npos);
  EXPECT_NE(text_of({.dp = 16, .ep = 16}).find("n_routed_experts 8"), std::string::npos);
}

}  // namespace
}  // namespace baleen::mesh
