#pragma once
// How a handler answers: once with a whole response, or with a stream of server-sent events. Both
// handles may be used from any thread and never block; what is sent waits in a bounded queue. The
// server tells a handler that its client left, also while nothing is being written.
//
//   writer.on_disconnect([id] { engine.abort(id); });
//   EventStream events = std::move(writer).start_events();
//   events.send(json); events.close();

#include <functional>
#include <memory>
#include <string_view>

#include "http/message.h"

namespace baleen::http {

class Exchange;

/// Server-sent events to one client. A handle that is destroyed before close() breaks the
/// connection off, so that a client never takes half a stream for a whole one.
class EventStream {
 public:
  explicit EventStream(std::shared_ptr<Exchange> exchange);
  ~EventStream();
  EventStream(EventStream&&) noexcept = default;
  EventStream& operator=(EventStream&&) noexcept;

  /// Queues one event; line ends inside `data` become further data lines. False when the client has
  /// left or its queue overflowed (then the connection is broken off and on_disconnect called).
  bool send(std::string_view data);
  bool send_named(std::string_view event, std::string_view data);
  void close();

 private:
  std::shared_ptr<Exchange> exchange_;
};

/// The right to answer one request. Destroyed unused, it answers 500.
class ResponseWriter {
 public:
  explicit ResponseWriter(std::shared_ptr<Exchange> exchange);
  ~ResponseWriter();
  ResponseWriter(ResponseWriter&&) noexcept = default;
  ResponseWriter& operator=(ResponseWriter&&) = delete;

  /// `callback` runs at most once, on an I/O thread (at once if the client is gone already), and
  /// never after the response was written out. It must not block.
  void on_disconnect(std::function<void()> callback);
  void respond(Response response);
  EventStream start_events(Headers extra = {}) &&;

 private:
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace baleen::http
