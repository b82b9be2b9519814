#pragma once
// Takes weights that arrive over HTTP into the running engine: a thread orders the update, which
// draws from a stream that the handlers feed. One update at a time; a second begin breaks the first
// one off. A sender that falls silent leaves an engine without weights, which then refuses requests
// until an update succeeds. Any thread.
//
//   config.weight_streams = std::make_shared<WeightReceiver>(engine);
//   receiver->stop();     // before the engine goes

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "engine/engine.h"
#include "server/weight_streams.h"
#include "weights/fed_stream.h"

namespace baleen::apps {

class WeightReceiver final : public server::WeightStreams {
 public:
  /// `patience`: how long an update waits for its next message.
  explicit WeightReceiver(engine::Engine& engine,
                          std::chrono::milliseconds patience = std::chrono::seconds(30));
  ~WeightReceiver() override;

  /// {"update": number}
  Result<std::string> begin(std::string_view manifest) override;
  /// {"tensors": taken}. kNotFound with the code weights::kUpdateNotOpen for the bucket of an
  /// update that is not open, kInvalidArgument for damaged ones; when the update failed, its
  /// reason.
  Result<std::string> bucket(std::string_view message) override;
  /// {"success": true, "weight_version": name}
  Result<std::string> end(std::string_view message) override;
  /// Breaks off what is open; nothing is taken afterwards.
  void stop();

 private:
  struct Update;

  std::shared_ptr<Update> open(uint64_t number) const;
  void close_open(const std::string& reason);

  engine::Engine& engine_;
  const std::chrono::milliseconds patience_;
  mutable std::mutex mutex_;
  uint64_t last_ = 0;               // number of the newest update
  std::shared_ptr<Update> update_;  // null: none is open
  bool stopped_ = false;
};

}  // namespace baleen::apps
