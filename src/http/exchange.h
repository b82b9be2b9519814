#pragma once
// One request's answer on its way from handler threads to the connection: a small state machine
// with a bounded queue. The handler side is called from any thread, the connection side only by the
// connection. Shared by the two; whoever lets go last frees it.
//
//   exchange->append("data: {}\n\n");         // handler side
//   Exchange::Output out = exchange->take();  // connection side, after Wire::wake()

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "http/message.h"

namespace baleen::http {

/// What the exchange needs of its connection.
class Wire {
 public:
  virtual ~Wire() = default;
  /// Something can be taken; any thread, must not block and must not call back at once.
  virtual void wake() = 0;
};

class Exchange {
 public:
  /// Status of a response that stands for "the handler never answered": the connection sends the
  /// server's error page for 500 in its place.
  static constexpr int kUnanswered = 0;

  Exchange(std::shared_ptr<Wire> wire, int64_t max_queue_bytes);

  // Handler side.
  bool respond(Response response);
  bool begin_events(Headers extra);
  bool append(std::string_view bytes);
  void end_events();
  void break_off();
  void on_disconnect(std::function<void()> callback);
  bool answered() const;

  // Connection side.
  struct Output {
    std::optional<Response> response;      // a whole answer
    std::optional<Headers> events_header;  // a stream begins
    std::string bytes;                     // next part of the stream
    bool end = false;                      // the stream is complete
  };
  Output take();
  /// More of a stream whose header was taken; never a response or a header, which stay for take().
  Output take_events();
  /// The connection is to be cut, whatever it is writing.
  bool broken() const;
  /// The answer is written out: the callback will not be called any more.
  void finished();
  /// The client left, or its connection is being cut: calls the callback.
  void disconnected();

 private:
  enum class State { kOpen, kResponse, kEvents, kEnding, kBroken, kFinished, kLeft };
  void wake_locked();

  mutable std::mutex mutex_;
  std::shared_ptr<Wire> wire_;
  const int64_t max_queue_bytes_;
  State state_ = State::kOpen;
  bool answered_ = false;
  std::optional<Response> response_;
  std::optional<Headers> events_header_;
  std::string queue_;
  std::function<void()> on_disconnect_;
};

}  // namespace baleen::http
