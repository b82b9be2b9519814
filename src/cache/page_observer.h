#pragma once
// Told when a page's payload ends its life, so that debug builds can paint it: a stale read then
// changes the answer. Called on the engine's thread; the observer outlives the cache.
//
//   PaintOnFree paint([&](Pool pool, int32_t page) { memory.paint(pool, page); });
//   SequenceCache cache(options, &paint);

#include <cstdint>
#include <functional>
#include <utility>

#include "cache/pool.h"

namespace baleen::cache {

class PageObserver {
 public:
  virtual ~PageObserver() = default;
  virtual void full_page_freed(FullPage) {}
  virtual void swa_page_freed(SwaPage) {}
  virtual void checkpoint_freed(CheckpointSlot) {}
  virtual void open_block_freed(OpenGroupBlock) {}
};

/// Names every pool that loses a page.
class PaintOnFree : public PageObserver {
 public:
  using Hook = std::function<void(Pool pool, int32_t page)>;
  explicit PaintOnFree(Hook hook) : hook_(std::move(hook)) {}

  void full_page_freed(FullPage page) override {
    hook_(Pool::kC4, page.value());
    hook_(Pool::kC128, page.value());
    hook_(Pool::kIndexer, page.value());
  }
  void swa_page_freed(SwaPage page) override {
    hook_(Pool::kSwa, page.value());
    hook_(Pool::kC4State, page.value());
    hook_(Pool::kIndexerState, page.value());
  }
  void checkpoint_freed(CheckpointSlot slot) override { hook_(Pool::kCheckpoint, slot.value()); }
  void open_block_freed(OpenGroupBlock block) override { hook_(Pool::kOpenGroup, block.value()); }

 private:
  Hook hook_;
};

}  // namespace baleen::cache
