#include "http/exchange.h"

#include <vector>

#include <gtest/gtest.h>

#include "http/response_writer.h"
#include "http/sse_reader.h"

namespace baleen::http {
namespace {

struct CountingWire final : Wire {
  void wake() override { ++wakes; }
  int wakes = 0;
};

struct Pair {
  std::shared_ptr<CountingWire> wire = std::make_shared<CountingWire>();
  std::shared_ptr<Exchange> exchange;
  explicit Pair(int64_t limit = 1000) : exchange(std::make_shared<Exchange>(wire, limit)) {}
};

TEST(ExchangeTest, HandsOverAWholeResponse) {
  Pair pair;
  ResponseWriter(pair.exchange).respond(Response::text(201, "made"));
  EXPECT_EQ(pair.wire->wakes, 1);
  Exchange::Output output = pair.exchange->take();
  ASSERT_TRUE(output.response);
  EXPECT_EQ(output.response->status, 201);
  EXPECT_EQ(output.response->body, "made");
  EXPECT_FALSE(pair.exchange->take().response);
}

TEST(ExchangeTest, AnswersForAWriterThatWasDropped) {
  Pair pair;
  {
    const ResponseWriter writer(pair.exchange);
  }
  const Exchange::Output output = pair.exchange->take();
  ASSERT_TRUE(output.response);
  EXPECT_EQ(output.response->status, Exchange::kUnanswered);
}

TEST(ExchangeTest, CoalescesEventsAndKeepsTheirOrder) {
  Pair pair;
  EventStream events = ResponseWriter(pair.exchange).start_events({{"X-A", "1"}});
  EXPECT_TRUE(events.send("one"));
  EXPECT_TRUE(events.send_named("n", "two\nlines"));
  Exchange::Output output = pair.exchange->take();
  ASSERT_TRUE(output.events_header);
  EXPECT_EQ(*output.events_header->find("x-a"), "1");
  EXPECT_EQ(output.bytes, "data: one\n\nevent: n\ndata: two\ndata: lines\n\n");
  EXPECT_FALSE(output.end);
  events.close();
  EXPECT_TRUE(pair.exchange->take().end);
}

/// A connection that looks for more of a stream where none has begun, as it may while it finds out
/// whether a client still reads, must not swallow the answer.
TEST(ExchangeTest, LookingForEventsLeavesAnAnswerThatHasNotBegun) {
  Pair whole;
  EXPECT_TRUE(whole.exchange->take_events().bytes.empty());
  ResponseWriter(whole.exchange).respond(Response::text(200, "made"));
  EXPECT_FALSE(whole.exchange->take_events().response);
  ASSERT_TRUE(whole.exchange->take().response);

  Pair streamed;
  EventStream events = ResponseWriter(streamed.exchange).start_events();
  EXPECT_TRUE(events.send("one"));
  events.close();
  const Exchange::Output early = streamed.exchange->take_events();
  EXPECT_TRUE(early.bytes.empty()) << "not before the header";
  EXPECT_FALSE(early.end);
  const Exchange::Output output = streamed.exchange->take();
  EXPECT_TRUE(output.events_header);
  EXPECT_EQ(output.bytes, "data: one\n\n");
  EXPECT_TRUE(output.end);
}

TEST(ExchangeTest, TakesMoreOfAStreamThatHasBegun) {
  Pair pair;
  EventStream events = ResponseWriter(pair.exchange).start_events();
  EXPECT_TRUE(pair.exchange->take().events_header);
  EXPECT_TRUE(events.send("one"));
  EXPECT_EQ(pair.exchange->take_events().bytes, "data: one\n\n");
  events.close();
  EXPECT_TRUE(pair.exchange->take_events().end);
}

TEST(ExchangeTest, FullQueueBreaksTheStreamOff) {
  const std::string event = "data: 1234\n\n";  // 12 bytes
  Pair pair(2 * 12);
  EventStream events = ResponseWriter(pair.exchange).start_events();
  EXPECT_TRUE(events.send("1234"));
  EXPECT_TRUE(events.send("1234"));
  EXPECT_FALSE(events.send("1234"));
  EXPECT_TRUE(pair.exchange->broken());
  EXPECT_FALSE(events.send("1"));
}

TEST(ExchangeTest, StreamDroppedBeforeItsEndIsBrokenOff) {
  Pair pair;
  {
    EventStream events = ResponseWriter(pair.exchange).start_events();
  }
  EXPECT_TRUE(pair.exchange->broken());
}

TEST(ExchangeTest, CallsBackOnceWhenTheClientLeaves) {
  Pair pair;
  int calls = 0;
  ResponseWriter writer(pair.exchange);
  writer.on_disconnect([&] { ++calls; });
  pair.exchange->disconnected();
  pair.exchange->disconnected();
  EXPECT_EQ(calls, 1);
  writer.on_disconnect([&] { ++calls; });  // gone already: at once
  EXPECT_EQ(calls, 2);
  writer.respond(Response::text(200, "late"));
  EXPECT_FALSE(pair.exchange->take().response);
}

TEST(ExchangeTest, DoesNotCallBackAfterTheAnswerIsOut) {
  Pair pair;
  int calls = 0;
  ResponseWriter writer(pair.exchange);
  writer.on_disconnect([&] { ++calls; });
  writer.respond(Response::text(200, ""));
  pair.exchange->finished();
  pair.exchange->disconnected();
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(pair.wire.use_count(), 1);
}

TEST(SseReaderTest, GivesTheSameEventsForEveryCut) {
  const std::string text = ": note\nevent: a\ndata: x\ndata:  y\n\ndata\n\n\r\ndata: z\r\n\r\n";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    SseReader reader;
    std::vector<SseEvent> events;
    const auto keep = [&](const SseEvent& event) { events.push_back(event); };
    reader.push(std::string_view(text).substr(0, cut), keep);
    reader.push(std::string_view(text).substr(cut), keep);
    ASSERT_EQ(events.size(), 3U);
    EXPECT_EQ(events[0].event, "a");
    EXPECT_EQ(events[0].data, "x\n y");
    EXPECT_EQ(events[1].data, "");
    EXPECT_EQ(events[2].data, "z");
    EXPECT_EQ(events[2].event, "");
  }
}

}  // namespace
}  // namespace baleen::http
