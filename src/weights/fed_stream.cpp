#include "weights/fed_stream.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::weights {
namespace {

constexpr std::size_t kWaitingBuckets = 2;

}  // namespace

FedStream::FedStream(WeightManifest manifest, std::chrono::milliseconds patience)
    : manifest_(std::move(manifest)), patience_(patience) {}

bool FedStream::feed(WeightBucket bucket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || buckets_.size() < kWaitingBuckets; });
  if (closed_) {
    return false;
  }
  buckets_.push_back(std::move(bucket));
  changed_.notify_all();
  return true;
}

void FedStream::finish(std::string root, TensorDigests value_digests) {
  const std::lock_guard lock(mutex_);
  root_ = std::move(root);
  digests_ = std::move(value_digests);
  finished_ = true;
  changed_.notify_all();
}

void FedStream::break_off(std::string reason) {
  const std::lock_guard lock(mutex_);
  broken_ = std::move(reason);
  changed_.notify_all();
}

void FedStream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::optional<WeightBucket> FedStream::next() {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(
      lock, patience_, [&] { return !buckets_.empty() || finished_ || !broken_.empty(); });
  if (!broken_.empty()) {
    throw CheckpointError("the stream of weights broke off: " + broken_);
  }
  if (!came) {
    throw CheckpointError(
        fmt::format("the stream of weights broke off: nothing came for {} ms", patience_.count()));
  }
  if (buckets_.empty()) {
    return std::nullopt;
  }
  WeightBucket bucket = std::move(buckets_.front());
  buckets_.pop_front();
  changed_.notify_all();
  return bucket;
}

std::string FedStream::root() const {
  const std::lock_guard lock(mutex_);
  return root_;
}

TensorDigests FedStream::value_digests() const {
  const std::lock_guard lock(mutex_);
  return digests_;
}

}  // namespace baleen::weights
