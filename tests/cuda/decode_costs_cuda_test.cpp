// What a step of the decode path costs beside its kernels, once it is warm: no allocation on host
// or device, no lock, and one wait for the device each time that somebody needs what it computed.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/lock_counter.h"
#include "cache/allocation_counter.h"
#include "cache/memory_plan.h"
#include "cuda_call_counter.h"
#include "device/cuda_check.h"
#include "narrow_flash_gpu.h"
#include "ops/rope.h"
#include "runner/some_ids_for_tests.h"

namespace baleen::runner {
namespace {

constexpr int32_t kSlots = 4;
constexpr int32_t kFirstCounted = 8;  // steps before are warm-up

/// A path that nobody drives but the test, with two pages for every slot.
struct LonePath {
  LonePath(const model::ModelParameters& weights, int32_t drafts, bool record_choices)
      : model(weights, forward_of(drafts)) {
    const cache::CacheSizes sizes = cache::fit_cache(
        cache::cache_shape(model.config(), model.cache_formats()),
        256 << 20,
        {.max_running_requests = kSlots, .chunk_tokens = 64, .drafts = drafts > 0});
    pools.emplace(model.make_pools(sizes, /*paint=*/false));
    const ModelConfig& config = model.config();
    path = kernel_decode()({.config = config,
                            .pools = *pools,
                            .folder = narrow_flash_folder().string(),
                            .checkpoint = nullptr,
                            .num_slots = kSlots,
                            .max_context = kMostContext,
                            .max_row_tokens = drafts + 1,
                            .max_step_tokens = 512,
                            .record_choices = record_choices,
                            .plain_frequencies = ops::rope_frequencies(
                                config.qk_rope_head_dim, config.rope_theta, std::nullopt),
                            .compressed_frequencies = ops::rope_frequencies(
                                config.qk_rope_head_dim, config.compress_rope_theta, config.yarn)});
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      for (int32_t block = 0; block < 2; ++block) {
        path->change_page({.slot = RequestSlot(slot),
                           .block = block,
                           .full = cache::FullPage(1 + slot + kSlots * block),
                           .swa = cache::SwaPage(1 + slot + kSlots * block)});
      }
    }
  }
  static model::ForwardConfig forward_of(int32_t drafts) {
    model::ForwardConfig forward;
    forward.device = "cuda";
    forward.max_context = kMostContext;
    forward.with_mtp = drafts > 0;
    forward.max_rollback = drafts;
    return forward;
  }

  model::Model model;
  std::optional<cache::PoolMemory> pools;
  std::unique_ptr<DecodePath> path;
};

/// What has been used since begin().
class StepCosts {
 public:
  void begin() {
    std::size_t total = 0;
    BALEEN_CUDA_CHECK(cudaMemGetInfo(&free_bytes_, &total));
    calls_ = cuda_calls();
    EXPECT_GT(calls_.memory, 0);  // it does count
    EXPECT_GT(calls_.other_waits, 0);
    allocations_ = cache::num_allocations();
    locks_ = num_locks_of_thread();
  }
  /// Nothing but so many waits for the stream.
  void expect_only_waits(int64_t waits) const {
    const CudaCalls now = cuda_calls();
    EXPECT_EQ(cache::num_allocations(), allocations_);
    EXPECT_EQ(num_locks_of_thread(), locks_);
    EXPECT_EQ(now.memory, calls_.memory);
    EXPECT_EQ(now.other_waits, calls_.other_waits);
    EXPECT_EQ(now.stream_waits, calls_.stream_waits + waits);
    std::size_t free = 0;
    std::size_t total = 0;
    BALEEN_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    EXPECT_EQ(free, free_bytes_);
  }

 private:
  CudaCalls calls_;
  int64_t allocations_ = 0;
  int64_t locks_ = 0;
  std::size_t free_bytes_ = 0;
};

/// One row gives its logits to the host, one wants log-probs, the others are drawn greedily.
struct Draws {
  Draws() {
    greedy.temperature = 0.0F;
    warm.want_logprobs = true;
    warm.top_logprobs = 5;
  }
  const engine::SamplingRow* of(int32_t slot) const {
    return slot == 0 ? nullptr : slot == 1 ? &warm : &greedy;
  }
  engine::SamplingRow greedy;
  engine::SamplingRow warm;
};

TEST_F(NarrowFlashGpu, AStepAfterTheFirstAllocatesNothing) {
  constexpr int32_t kEnd = 330;  // over a page's border, and picks leave entries out
  LonePath lone(*weights_, /*drafts=*/0, /*record_choices=*/true);
  const Draws draws;
  const std::vector<int32_t> ids = some_ids(kSlots, 3);
  std::vector<DecodeRow> rows;
  StepCosts costs;
  std::size_t picks = 0;
  for (int32_t position = 0; position < kEnd; ++position) {
    rows.clear();
    for (int32_t slot = 0; slot < kSlots - position % 2; ++slot) {  // the number of rows changes
      rows.push_back({.ids = std::span(ids).subspan(static_cast<std::size_t>(slot), 1),
                      .slot = RequestSlot(slot),
                      .position = position,
                      .draw = draws.of(slot)});
    }
    if (position == kFirstCounted) {
      costs.begin();
    }
    lone.path->run(rows);
    picks += lone.path->choices()->picks.size();
  }
  costs.expect_only_waits(kEnd - kFirstCounted);
  EXPECT_GT(picks, 0U);
  // Nor do passes of prompts, in the forms of many tokens.
  constexpr int32_t kPasses = 5;
  const std::vector<int32_t> prompt = some_ids(300, 6);
  for (int32_t pass = 0; pass < kPasses; ++pass) {
    rows.assign(1,
                {.ids = prompt,
                 .slot = RequestSlot(1),
                 .position = 0,
                 .first_result = static_cast<int32_t>(prompt.size()) - 1,
                 .draw = &draws.greedy});
    if (pass == 1) {
      costs.begin();
    }
    lone.path->run(rows);
  }
  costs.expect_only_waits(kPasses - 1);
}

// Four tokens of each sequence are verified and one to four of them stand, over a page's border;
// then the draft layer follows them and makes a chain of three.
TEST_F(NarrowFlashGpu, AStepWithDraftsAfterTheFirstAllocatesNothing) {
  constexpr int32_t kDrafts = 3;
  constexpr int32_t kEnd = 330;
  LonePath lone(*weights_, kDrafts, /*record_choices=*/false);
  ASSERT_TRUE(lone.path->runs_drafts());
  const Draws draws;
  const std::vector<int32_t> ids = some_ids(kSlots * (kDrafts + 1), 4);
  const auto ids_of = [&ids](int32_t slot, int32_t count) {
    return std::span(ids).subspan(static_cast<std::size_t>(slot * (kDrafts + 1)),
                                  static_cast<std::size_t>(count));
  };
  std::vector<DecodeRow> rows;
  std::vector<DraftRow> drafted;
  StepCosts costs;
  int32_t steps = 0;
  for (int32_t position = 0; position + kDrafts < kEnd; ++steps) {
    const int32_t stand = 1 + steps % (kDrafts + 1);
    rows.clear();
    drafted.clear();
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      rows.push_back({.ids = ids_of(slot, kDrafts + 1),
                      .slot = RequestSlot(slot),
                      .position = position,
                      .draw = draws.of(slot)});
    }
    if (steps == kFirstCounted) {
      costs.begin();
    }
    lone.path->run(rows);
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      drafted.push_back({.next_ids = ids_of(slot, stand),
                         .slot = RequestSlot(slot),
                         .position = position,
                         .streams = lone.path->streams(static_cast<std::size_t>(slot))});
    }
    lone.path->draft(drafted);
    for (int32_t link = 0; link < kDrafts - 1; ++link) {
      for (DraftRow& row : drafted) {
        row.next_ids = row.next_ids.first(1);
        row.position = position + stand + link;
        row.chained = true;
        row.streams = nullptr;
      }
      lone.path->draft(drafted);
    }
    position += stand;
  }
  costs.expect_only_waits((steps - kFirstCounted) * (1 + kDrafts));
}

}  // namespace
}  // namespace baleen::runner
