#include "cache/page_book.h"

#include <gtest/gtest.h>

#include "cache/allocation_counter.h"
#include "cache/cache_test_options.h"
#include "cache/chain_index.h"
#include "cache/lru_heap.h"
#include "cache/ticket_table.h"

namespace baleen::cache {
namespace {

TEST(PageBookTest, ALeaseGivesItsPageBack) {
  PageBook book(3, 2, 256, nullptr);
  {
    PageLease a(book, book.take());
    book.attach_swa(a.page());
    EXPECT_EQ(book.full_count(PageUse::kLeased), 1);
    EXPECT_EQ(book.swa_count(PageUse::kLeased), 1);
    PageLease b = std::move(a);
    EXPECT_EQ(book.full_count(PageUse::kLeased), 1);
  }
  EXPECT_EQ(book.full_count(PageUse::kFree), 3);
  EXPECT_EQ(book.swa_count(PageUse::kFree), 2);
}

TEST(PageBookTest, PagesGoByWhatUsesThem) {
  PageBook book(3, 2, 256, nullptr);
  PageLease lease(book, book.take());
  const FullPage page = lease.page();
  book.attach_swa(page);
  const SwaPage swa = book.swa_of(page);
  const FullPage node = std::move(lease).into_node();
  EXPECT_EQ(book.use(node), PageUse::kEvictable);
  EXPECT_EQ(book.use(swa), PageUse::kEvictable);
  book.lock(node);
  book.lock_swa(node);
  EXPECT_EQ(book.use(node), PageUse::kProtected);
  EXPECT_EQ(book.use(swa), PageUse::kProtected);
  book.unlock_swa(node);
  book.unlock(node);
  book.add_head(node);
  book.hold(swa);
  book.drop_node(node);
  EXPECT_EQ(book.use(node), PageUse::kEvictable) << "a resume point still ends in it";
  EXPECT_EQ(book.use(swa), PageUse::kParked);
  book.pin_head(node);
  EXPECT_EQ(book.use(node), PageUse::kProtected);
  book.unpin_head(node);
  book.hold(node);
  book.drop_head(node);
  EXPECT_EQ(book.use(node), PageUse::kParked);
  book.unhold(node);
  book.unhold(swa);
  EXPECT_EQ(book.full_count(PageUse::kFree), 3);
  EXPECT_EQ(book.swa_count(PageUse::kFree), 2);
}

TEST(PageBookDeathTest, WrongUseEndsTheProgram) {
  PageBook book(1, 1, 256, nullptr);
  EXPECT_DEATH(book.hold(FullPage(1)), "page=1 is free");
  EXPECT_DEATH(book.end_lease(FullPage(1)), "page=1 is not leased");
  const FullPage page = book.take();
  EXPECT_DEATH(book.take(), "no free page in pool full");
  EXPECT_DEATH(book.unlock(page), "is not locked");
  EXPECT_DEATH(book.lock_swa(page), "is a tombstone");
  EXPECT_DEATH(book.unhold(page), "is not held");
}

TEST(PageBookTest, TheObserverHearsOfEveryPoolThatLosesAPage) {
  std::vector<std::pair<Pool, int32_t>> painted;
  PaintOnFree paint([&](Pool pool, int32_t page) { painted.emplace_back(pool, page); });
  PageBook book(2, 2, 256, &paint);
  PageLease lease(book, book.take());
  book.attach_swa(lease.page());
  lease.reset();
  EXPECT_EQ(painted,
            (std::vector<std::pair<Pool, int32_t>>{{Pool::kSwa, 1},
                                                   {Pool::kC4State, 1},
                                                   {Pool::kIndexerState, 1},
                                                   {Pool::kC4, 1},
                                                   {Pool::kC128, 1},
                                                   {Pool::kIndexer, 1}}));
}

TEST(ChainIndexTest, KeepsIdsOfOneHashApart) {
  ChainIndex index(10);
  for (int32_t id = 0; id < 10; ++id) {
    index.insert(static_cast<uint64_t>(id % 2), id);
  }
  const auto is = [](int32_t wanted) { return [wanted](int32_t id) { return id == wanted; }; };
  EXPECT_EQ(index.find(1, is(7)), 7);
  EXPECT_EQ(index.find(0, is(7)), -1);
  index.erase(7);
  EXPECT_EQ(index.find(1, is(7)), -1);
  EXPECT_EQ(index.find(1, is(9)), 9);
  EXPECT_EQ(index.find(1, is(1)), 1);
  EXPECT_FALSE(index.contains(7));
}

TEST(LruHeapTest, AgreesWithSorting) {
  LruHeap heap(64);
  std::vector<LruHeap::Key> keys(64);
  std::vector<bool> in(64, false);
  uint64_t random = 1;
  for (int32_t step = 0; step < 20000; ++step) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto id = static_cast<int32_t>((random >> 33) % 64);
    const auto at = static_cast<size_t>(id);
    if ((random >> 50) % 3 == 0) {
      heap.erase(id);
      in[at] = false;
    } else {
      keys[at] = {static_cast<int64_t>((random >> 40) % 50), id};
      heap.put(id, keys[at]);
      in[at] = true;
    }
    int32_t oldest = -1;
    for (int32_t other = 0; other < 64; ++other) {
      const auto o = static_cast<size_t>(other);
      if (in[o] && (oldest < 0 || keys[o] < keys[static_cast<size_t>(oldest)])) {
        oldest = other;
      }
    }
    ASSERT_EQ(heap.top(), oldest);
    ASSERT_EQ(heap.oldest([](int32_t) { return true; }), oldest);
  }
}

TEST(TicketTableTest, OnlyOpenTicketsAreFound) {
  TicketTable tickets;
  const CacheTicket a = tickets.open();
  const CacheTicket b = tickets.open();
  EXPECT_NE(tickets.find(a), nullptr);
  tickets.close(a);
  EXPECT_EQ(tickets.find(a), nullptr);
  const CacheTicket c = tickets.open();  // the same place, another ticket
  EXPECT_EQ(tickets.find(a), nullptr);
  EXPECT_NE(tickets.find(c), nullptr);
  EXPECT_NE(tickets.find(b), tickets.find(c));
  EXPECT_EQ(tickets.find(CacheTicket()), nullptr);
  EXPECT_EQ(tickets.num_open(), 2);
}

TEST(CacheGeometryTest, SaysHowFineAHitCanBe) {
  EXPECT_EQ(resume_granularity(CacheGeometry{}), "128 tokens in prompts, 4 at turn ends");
}

TEST(SequenceCacheAllocationTest, DecodingAllocatesNothingOnceWarm) {
  WorkloadOptions options = full_size();
  SequenceCache cache(options.cache);
  std::vector<PageChange> changes;
  const std::vector<int32_t> prompt = some_ids(300);
  const auto decode = [&](int32_t tokens) {
    std::vector<SequenceLease> leases;
    for (int32_t slot = 0; slot < 4; ++slot) {
      leases.push_back(std::move(cache.admit(RequestSlot(slot), {.ids = prompt}, 300)->lease));
      cache.commit(leases.back(),
                   std::span(prompt).subspan(static_cast<size_t>(leases.back().committed())));
    }
    const int64_t before = num_allocations();
    for (int32_t i = 0; i < tokens; ++i) {
      const CacheTicket step = cache.open_step();
      for (SequenceLease& lease : leases) {
        EXPECT_TRUE(cache.reserve(lease, lease.committed() + 8));
        cache.join(step, lease, lease.committed() + 4);
      }
      changes.clear();
      cache.take_page_changes(changes);
      cache.complete(step);
      for (SequenceLease& lease : leases) {
        const int32_t ids[2] = {i, lease.slot().value()};
        cache.commit(lease, ids, 9);
      }
    }
    return num_allocations() - before;
  };
  decode(600);
  cache.flush();
  EXPECT_EQ(decode(600), 0);
}

}  // namespace
}  // namespace baleen::cache
