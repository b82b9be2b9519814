#pragma once
// A weight source that one thread feeds while another takes from it: what a server makes of the
// messages of an update. A feeder that falls silent breaks the stream off for the taker, a taker
// that is through with it is told to the feeder.
//
//   auto stream = std::make_shared<FedStream>(manifest, std::chrono::seconds(30));
//   engine.update_weights({.source = stream});          // its thread calls next()
//   stream->feed(bucket); ... stream->finish(root, digests);   // another one

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "weights/weight_stream.h"

namespace baleen::weights {

class FedStream final : public WeightSource {
 public:
  /// `patience`: how long next() waits for the feeder.
  FedStream(WeightManifest manifest, std::chrono::milliseconds patience);

  /// Waits while two buckets lie there. False: the taker has given up, nothing more is wanted.
  bool feed(WeightBucket bucket);
  /// The last bucket was fed.
  void finish(std::string root, TensorDigests value_digests);
  /// next() throws CheckpointError with this reason.
  void break_off(std::string reason);
  /// Of the taker: no further call comes.
  void close();

  const WeightManifest& manifest() const override { return manifest_; }
  /// Throws CheckpointError when the stream was broken off or nothing came for `patience`.
  std::optional<WeightBucket> next() override;
  std::string root() const override;
  TensorDigests value_digests() const override;

 private:
  const WeightManifest manifest_;
  const std::chrono::milliseconds patience_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<WeightBucket> buckets_;
  bool finished_ = false;
  bool closed_ = false;
  std::string broken_;  // why; empty: it is not
  std::string root_;
  TensorDigests digests_;
};

}  // namespace baleen::weights
