#pragma once
// Asks one request of an OpenAI-compatible server and notes when its pieces arrive. One thread;
// keeps its connection.
//
//   LoadClient client(target);
//   LoadAnswer answer = client.run(messages, 64);

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench/load/load_target.h"
#include "http/client.h"

namespace baleen::apps {

using LoadClock = std::chrono::steady_clock;

/// What is known of one request. Times in seconds from the begin of the run; -1: never came.
struct LoadRecord {
  bool ok = false;
  bool refused = false;    // 400 or 422
  std::string error = {};  // the server's message, or what went wrong on the way
  double wanted_s = 0.0;   // when the plan had it begin
  double begin_s = 0.0;
  double first_s = -1.0;            // first piece with text, reasoning or a call
  double last_s = -1.0;             // last such piece
  double end_s = 0.0;               // the answer was complete
  std::vector<double> gaps_s = {};  // between two such pieces
  int64_t prompt_tokens = -1;       // -1: not reported
  int64_t cached_tokens = -1;
  int64_t answer_tokens = 0;  // reported, else the number of pieces
};

struct LoadAnswer {
  LoadRecord record;
  std::string text;  // the visible answer, to go on with
};

class LoadClient {
 public:
  /// `target` outlives it. Times count from `epoch`.
  explicit LoadClient(const LoadTarget& target, LoadClock::time_point epoch = LoadClock::now());

  LoadAnswer run(const std::vector<LoadMessage>& messages, int32_t answer_tokens);

 private:
  const LoadTarget& target_;
  const LoadClock::time_point epoch_;
  http::Client client_;
};

}  // namespace baleen::apps
