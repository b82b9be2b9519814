#pragma once
// A server (`baleen serve`) as an engine of the rollouts: answers by POST /generate from a pool of
// threads, weights by POST /weights/*. A server that cannot be reached or answers 5xx is out until
// the next weights reach it; what it had ends with kError. Draws are a function of seeds and
// weights, so where they are made changes nothing.
//
//   RemoteEngine engine("http://127.0.0.1:30000", {.threads = 16, .end_token_ids = {1}});
//   engine.publish(source, version);                    // throws what a healthy server refuses
//   engine.submit(request, sink);

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rl/rollout_engine.h"
#include "weights/weight_stream.h"

namespace baleen::http {
class Client;
}  // namespace baleen::http

namespace baleen::rl {

struct RemoteOptions {
  int64_t threads = 16;                // answers that are asked for at once
  std::vector<int32_t> end_token_ids;  // of the model
  /// A server that has not answered an abort by then is out.
  std::chrono::milliseconds abort_timeout{10'000};
};

class RemoteEngine final : public RolloutEngine {
 public:
  /// Throws ConfigError when `url` is none. Asks nothing yet; not healthy before the first
  /// publish().
  RemoteEngine(std::string url, RemoteOptions options);
  /// Does not wait for answers: what is under way or waiting ends with kError (kCancelled).
  ~RemoteEngine() override;

  /// Sends the weights. False: the server cannot be reached or broke off; it is out. Throws Error
  /// when it refuses them (another contract, another model, no such path).
  bool publish(weights::WeightSource& source, int64_t version);

  Status submit(engine::GenerationRequest request,
                std::shared_ptr<engine::OutputSink> sink) override;
  /// A server that does not take it is out, and what it was asked ends with kError at once. Of one
  /// that is out already nothing is asked, and its answer not waited for.
  void abort(std::string_view id) override;
  bool healthy() const override;
  std::string health_message() const override;
  std::optional<cache::ChoiceLayout> choices() const override { return std::nullopt; }
  std::vector<int32_t> end_token_ids() const override { return options_.end_token_ids; }
  const std::string& url() const { return url_; }

 private:
  struct Job {
    engine::GenerationRequest request;
    std::shared_ptr<engine::OutputSink> sink;  // shared with who asked
  };
  struct Asked {
    std::string id;
    std::string broken_off;  // why nobody waits for the answer any more; empty: somebody does
  };

  void work(const std::stop_token& stop);
  enum class UnderWay { kStay, kBreakOff };
  void lose(const std::string& reason, UnderWay under_way = UnderWay::kStay);

  const std::string url_;
  const RemoteOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Job> waiting_;
  std::map<http::Client*, Asked> asked_;            // answers under way, by who waits
  std::string fault_ = "no weights were sent yet";  // empty: healthy
  std::string version_;                             // that answers must be of
  std::vector<std::jthread> workers_;               // last: they use the others
};

/// The body of POST /generate, and the events of its answer. Throws Error when that is none.
std::string generate_body(const engine::GenerationRequest& request);
engine::OutputEvent read_generated(std::string_view answer, const std::string& version);

}  // namespace baleen::rl
