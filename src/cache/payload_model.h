#pragma once
// A stand-in for the executor and all pools, for tests of the cache's bookkeeping. Every row of
// every pool is one number: what the row must hold follows from the namespace and the tokens up to
// its position alone, as in a cold run. Whatever a pass reads is compared with that; freed rows are
// painted. So a stale page, a wrong slot or a missed ring row shows, whoever is to blame.
//
// Steps run late, as on a device: `submit` takes a step with the page tables of that moment,
// `run_oldest` carries it out. Single thread.
//
//   PayloadModel model(geometry, sizes, rings, request_slots);
//   SequenceCache cache(options, &model);
//   model.submit(std::move(step));  ...  model.run_oldest();  EXPECT_EQ(model.fault(), "");

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "cache/sequence_cache.h"
#include "cache/state_rings.h"

namespace baleen::cache {

class PayloadModel : public PageObserver {
 public:
  using Tag = uint64_t;

  struct Row {
    RequestSlot slot;
    int32_t begin = 0;
    std::vector<Tag> tags;     // of positions 0 ... end - 1: what a cold run has there
    std::vector<int32_t> ids;  // tokens 0 ... end, the one after the last computed included
    int32_t refusable = 0;     // last positions that may be refused
    bool drafts = false;       // draft rows are written and read
    int32_t draft_begin = 0;
    int32_t draft_hole = -1;
  };
  struct Step {
    std::vector<CaptureJob> captures;
    std::vector<RequestSlot> resets;  // slots that begin a new sequence
    std::vector<ResumeCopy> copies;
    std::vector<Row> rows;
    std::vector<PageChange> pages;
  };

  PayloadModel(const CacheGeometry& geometry,
               const ShadowRadixSizes& sizes,
               const StateRings& rings,
               int32_t request_slots);

  void submit(Step step) { steps_.push_back(std::move(step)); }
  int32_t in_flight() const { return static_cast<int32_t>(steps_.size()); }
  void run_oldest();
  /// The first wrong read; empty if there was none.
  const std::string& fault() const { return fault_; }

  /// Tags of a sequence in a namespace.
  static std::vector<Tag> tags_of(const CacheNamespace& space, std::span<const int32_t> ids);

  void full_page_freed(FullPage page) override;
  void swa_page_freed(SwaPage page) override;
  void checkpoint_freed(CheckpointSlot slot) override;
  void open_block_freed(OpenGroupBlock block) override;

 private:
  struct Pages {
    FullPage full;
    SwaPage swa;
  };
  struct Checkpoint {
    std::vector<Tag> window;  // by position - (m - window)
    std::vector<Tag> drafts;
    std::vector<Tag> carry;
    Tag streams = 0;
  };

  const Pages& table(RequestSlot slot, int32_t position) const;
  Tag& swa(SwaPage page, int32_t position);
  Tag& draft(SwaPage page, int32_t position);
  Tag& ring4(SwaPage page, int32_t position);
  Tag& ring128(RequestSlot slot, int32_t position);
  struct DraftRow {
    int32_t position = -1;
    Tag streams = 0;
  };
  static Tag draft_tag(Tag tag, int32_t next_id);
  void expect(const char* what, int32_t position, Tag found, Tag wanted);

  void capture(const CaptureJob& job, const Row* row);
  void resume(const ResumeCopy& copy);
  void save_window(const CaptureJob& job);
  void recompute_draft_row(const Row& row);
  void read(const Row& row);
  void write(const Row& row);

  CacheGeometry geometry_;
  StateRings rings_;
  std::vector<Tag> swa_;
  std::vector<Tag> draft_;
  std::vector<Tag> c4_;
  std::vector<Tag> c128_;
  std::vector<Tag> ring4_;
  std::vector<Tag> ring128_;
  std::vector<Checkpoint> checkpoints_;
  std::vector<Tag> open_;
  std::vector<std::vector<Pages>> tables_;  // by request slot and block
  std::vector<DraftRow> recompute_;         // by request slot, for its first pass
  std::deque<Step> steps_;
  std::string fault_;
};

}  // namespace baleen::cache
