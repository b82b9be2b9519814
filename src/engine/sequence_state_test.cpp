#include "engine/sequence_state.h"

#include <gtest/gtest.h>

#include "engine/slot_pool.h"

namespace baleen::engine {
namespace {

TEST(SlotPoolTest, HandsOutTheLowestFreeSlot) {
  SlotPool pool(3);
  SlotLease a = pool.lease();
  SlotLease b = pool.lease();
  EXPECT_EQ(a.slot(), RequestSlot(0));
  EXPECT_EQ(b.slot(), RequestSlot(1));
  EXPECT_EQ(pool.peek(0), RequestSlot(2));
  a = SlotLease();
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.peek(0), RequestSlot(0));
  EXPECT_EQ(pool.peek(1), RequestSlot(2));
}

TEST(SlotPoolTest, MovedLeaseFreesItsSlotOnce) {
  SlotPool pool(2);
  {
    SlotLease a = pool.lease();
    SlotLease b = std::move(a);
    SlotLease c = pool.lease();
    c = std::move(b);  // frees slot 1
    EXPECT_EQ(pool.num_free(), 1);
    EXPECT_EQ(c.slot(), RequestSlot(0));
  }
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(SlotPoolDeathTest, LeaseBeyondThePoolAborts) {
  SlotPool pool(1);
  const SlotLease lease = pool.lease();
  EXPECT_DEATH({ const SlotLease second = pool.lease(); }, "no free slot of 1");
}

TEST(SlotPoolDeathTest, LeaseThatOutlivesItsPoolAborts) {
  EXPECT_DEATH(
      {
        auto pool = std::make_unique<SlotPool>(1);
        const SlotLease lease = pool->lease();
        pool.reset();
      },
      "1 leases outlive the pool");
}

TEST(SequenceStateTest, LegalWayHoldsTheSlotFromStartToEnd) {
  SlotPool pool(1);
  SequenceState state;
  EXPECT_STREQ(state.name(), "waiting");
  EXPECT_FALSE(state.slot().valid());
  state.to_prefilling(pool.lease());
  EXPECT_STREQ(state.name(), "prefilling");
  state.get<Prefilling>()->num_done = 5;
  state.to_decoding();
  EXPECT_STREQ(state.name(), "decoding");
  EXPECT_EQ(state.get<Decoding>()->length, 5);
  EXPECT_EQ(state.slot(), RequestSlot(0));
  EXPECT_EQ(pool.num_free(), 0);
  state.to_finished();
  EXPECT_STREQ(state.name(), "finished");
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(SequenceStateTest, EveryLiveStateCanFinish) {
  SlotPool pool(1);
  SequenceState waiting;
  waiting.to_finished();
  SequenceState prefilling;
  prefilling.to_prefilling(pool.lease());
  prefilling.to_finished();
  EXPECT_EQ(pool.num_free(), 1);
}

std::string refusal(const std::function<void()>& transition) {
  try {
    transition();
  } catch (const StateError& error) {
    return error.what();
  }
  return "allowed";
}

TEST(SequenceStateTest, IllegalTransitionsNameBothStates) {
  SlotPool pool(2);
  SequenceState state;
  EXPECT_EQ(refusal([&] { state.to_decoding(); }),
            "illegal transition of a sequence: waiting -> decoding");
  state.to_prefilling(pool.lease());
  EXPECT_EQ(refusal([&] { state.to_prefilling(pool.lease()); }),
            "illegal transition of a sequence: prefilling -> prefilling");
  EXPECT_EQ(pool.num_free(), 1);  // the lease of the refused transition is freed
  state.to_decoding();
  EXPECT_EQ(refusal([&] { state.to_decoding(); }),
            "illegal transition of a sequence: decoding -> decoding");
  EXPECT_EQ(refusal([&] { state.to_prefilling(pool.lease()); }),
            "illegal transition of a sequence: decoding -> prefilling");
  state.to_finished();
  EXPECT_EQ(refusal([&] { state.to_finished(); }),
            "illegal transition of a sequence: finished -> finished");
  EXPECT_EQ(refusal([&] { state.to_decoding(); }),
            "illegal transition of a sequence: finished -> decoding");
}

// What is not declared does not compile.
template <class From>
concept CanBeginDecoding = requires(From from) { begin_decoding(std::move(from)); };
template <class From>
concept CanFinish = requires(From from) { finish(std::move(from)); };
static_assert(CanBeginDecoding<Prefilling> && !CanBeginDecoding<Waiting> &&
              !CanBeginDecoding<Decoding> && !CanBeginDecoding<Finished>);
static_assert(CanFinish<Waiting> && CanFinish<Prefilling> && CanFinish<Decoding> &&
              !CanFinish<Finished>);

}  // namespace
}  // namespace baleen::engine
