#include "cache/pool_fill.h"

namespace baleen::cache {
namespace {

PoolFill fill_of(int32_t total, int32_t num_free, int32_t num_evictable) {
  return {.total = total, .used = total - num_free - num_evictable, .kept = num_evictable};
}

}  // namespace

PoolFills pool_fills(const SequenceCache& cache) {
  const PageBook& book = cache.radix().book();
  const PointTable& points = cache.radix().points();
  PoolFills out;
  out.pages = fill_of(book.num_full(),
                      static_cast<int32_t>(book.free_full().size()),
                      book.full_count(PageUse::kEvictable));
  out.windows = fill_of(book.num_swa(),
                        static_cast<int32_t>(book.free_swa().size()),
                        book.swa_count(PageUse::kEvictable));
  const int32_t kept = points.evictable().size();
  out.points = {.total = points.num_slots(),
                .used = points.num_slots() - points.free_slots() - kept,
                .kept = kept};
  out.open_groups = {.total = points.num_open_blocks(),
                     .used = points.num_open_blocks() - points.free_open_blocks(),
                     .kept = 0};
  return out;
}

}  // namespace baleen::cache
