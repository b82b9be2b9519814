// The lists of all ranks together: complete, in order, and never in a circle of waiting. And the
// messages between ranks.

#include "mesh/pipeline_schedule.h"

#include <map>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/thread_world.h"
#include "mesh/pipeline.h"

namespace baleen::mesh {
namespace {

StageSplit stages_of(int pp, int chunks_per_rank) {
  return StageSplit::even(int64_t{pp} * chunks_per_rank, pp, chunks_per_rank, false);
}

TEST(PipelineScheduleTest, EverythingRunsOnceAndNobodyWaitsForEver) {
  for (const PipelineOrder order : {PipelineOrder::k1F1B, PipelineOrder::kForwardsFirst}) {
    for (const int pp : {1, 2, 3, 4}) {
      for (const int chunks : {1, 2, 3}) {
        for (const int micro_batches : {pp, 2 * pp, 3 * pp}) {
          const StageSplit stages = stages_of(pp, chunks);
          std::vector<std::vector<PipelineAction>> lists;
          std::vector<std::size_t> done(static_cast<std::size_t>(pp), 0);
          for (int rank = 0; rank < pp; ++rank) {
            lists.push_back(pipeline_schedule(stages, rank, micro_batches, order));
            EXPECT_EQ(lists.back().size(), static_cast<std::size_t>(2 * chunks * micro_batches));
          }
          std::set<std::tuple<bool, int, int>> finished;
          const auto ready = [&](const PipelineAction& a) {
            if (!a.backward) {
              return a.chunk == 0 || finished.contains({false, a.chunk - 1, a.micro_batch});
            }
            return finished.contains({false, a.chunk, a.micro_batch}) &&
                   (stages.is_last(a.chunk) ||
                    finished.contains({true, a.chunk + 1, a.micro_batch}));
          };
          std::map<int, int> last_backward;  // by chunk
          bool moved = true;
          while (moved) {
            moved = false;
            for (std::size_t rank = 0; rank < lists.size(); ++rank) {
              if (done[rank] < lists[rank].size() && ready(lists[rank][done[rank]])) {
                const PipelineAction& a = lists[rank][done[rank]++];
                EXPECT_EQ(stages.rank_of_chunk(a.chunk), static_cast<int>(rank));
                EXPECT_TRUE(finished.insert({a.backward, a.chunk, a.micro_batch}).second);
                if (a.backward) {
                  EXPECT_EQ(a.micro_batch, last_backward[a.chunk]++);
                }
                moved = true;
              }
            }
          }
          EXPECT_EQ(finished.size(), static_cast<std::size_t>(2 * pp * chunks * micro_batches))
              << "pp " << pp << " chunks " << chunks << " micro-batches " << micro_batches;
        }
      }
    }
  }
}

TEST(PipelineScheduleTest, OneForwardOneBackwardHoldsFewMicroBatches) {
  for (int rank = 0; rank < 4; ++rank) {
    int held = 0;
    int most = 0;
    for (const PipelineAction& a :
         pipeline_schedule(stages_of(4, 1), rank, 16, PipelineOrder::k1F1B)) {
      held += a.backward ? -1 : 1;
      most = std::max(most, held);
    }
    EXPECT_EQ(most, 4 - rank);
  }
}

TEST(PipelineScheduleTest, InterleavedChunksNeedAMultipleOfTheRanks) {
  EXPECT_THROW(pipeline_schedule(stages_of(2, 2), 0, 3, PipelineOrder::k1F1B), ConfigError);
  EXPECT_NO_THROW(pipeline_schedule(stages_of(2, 1), 0, 3, PipelineOrder::k1F1B));
}

TEST(StageSplitTest, PublishedSplitsAndWhoHoldsWhat) {
  const StageSplit flash({4, 6, 6, 6, 6, 6, 6, 3}, 43, 8, true);
  EXPECT_EQ(flash.first_block(1), 4U);
  EXPECT_EQ(flash.end_block(7), 43U);
  EXPECT_TRUE(flash.holds(0, "embed.weight"));
  EXPECT_TRUE(flash.holds(7, "embed.weight"));
  EXPECT_FALSE(flash.holds(3, "embed.weight"));
  EXPECT_TRUE(flash.holds(1, "layers.9.attn.wkv.weight"));
  EXPECT_FALSE(flash.holds(1, "layers.10.attn.wkv.weight"));
  EXPECT_TRUE(flash.holds(7, "mtp.0.enorm.weight"));
  EXPECT_TRUE(flash.embedding_is_shared());
  const StageSplit interleaved = StageSplit::even(9, 2, 2, false);  // 3, 2, 2, 2
  EXPECT_TRUE(interleaved.holds(0, "layers.5.attn_norm.weight"));
  EXPECT_TRUE(interleaved.holds(1, "layers.8.attn_norm.weight"));
  EXPECT_FALSE(interleaved.holds(1, "layers.5.attn_norm.weight"));
  EXPECT_FALSE(interleaved.holds(1, "embed.weight"));
  EXPECT_THROW(StageSplit({4, 6}, 11, 2, false), ConfigError);
  EXPECT_THROW(StageSplit::even(3, 2, 2, false), ConfigError);
}

TEST(StreamMailTest, MessagesAreTakenByLabelNotByArrival) {
  comm::run_ranks(2, {}, [](comm::World& world) {
    const auto group = world.group({0, 1});
    StreamMail mail(*group);
    const PipelineAction first{.backward = false, .micro_batch = 1, .chunk = 1};
    const PipelineAction second{.backward = true, .micro_batch = 0, .chunk = 1};
    if (group->rank() == 0) {
      mail.send(at::full({2, 3}, 1.0, at::kDouble), first, 1);
      mail.send(at::full({2, 3}, 2.0, at::kDouble), second, 1);
    } else {
      EXPECT_EQ(mail.receive({2, 3}, at::kDouble, second, 0)[0][0].item<double>(), 2.0);
      EXPECT_EQ(mail.receive({2, 3}, at::kDouble, first, 0)[0][0].item<double>(), 1.0);
    }
  });
}

TEST(StreamMailTest, AnotherShapeIsNamed) {
  try {
    comm::run_ranks(2, {}, [](comm::World& world) {
      const auto group = world.group({0, 1});
      StreamMail mail(*group);
      const PipelineAction label{.backward = false, .micro_batch = 3, .chunk = 1};
      if (group->rank() == 0) {
        mail.send(at::zeros({2, 3}, at::kDouble), label, 1);
      } else {
        mail.receive({2, 4}, at::kDouble, label, 0);
      }
    });
    FAIL();
  } catch (const comm::CommError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("streams of chunk 1, micro-batch 3: expected shape [2, 4], got [2, 3]"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace baleen::mesh
