#include "apps/weight_receiver.h"

#include <condition_variable>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "weights/weight_frames.h"

namespace baleen::apps {
namespace {

Status not_open(uint64_t update) {
  return {StatusCode::kNotFound,
          fmt::format("update {} is not open", update),
          "update",
          std::string(weights::kUpdateNotOpen)};
}

}  // namespace

/// Shared by the handlers that feed it and the thread that orders it.
struct WeightReceiver::Update {
  Update(uint64_t own_number, weights::WeightManifest manifest, std::chrono::milliseconds patience)
      : number(own_number),
        version(std::to_string(manifest.version)),
        stream(std::make_shared<weights::FedStream>(std::move(manifest), patience)) {}

  void settle(Status status) {
    stream->close();
    const std::lock_guard lock(mutex);
    outcome = std::move(status);
    settled.notify_all();
  }
  std::optional<Status> outcome_now() const {
    const std::lock_guard lock(mutex);
    return outcome;
  }
  Status wait() {
    std::unique_lock lock(mutex);
    settled.wait(lock, [&] { return outcome.has_value(); });
    return *outcome;
  }

  const uint64_t number;
  const std::string version;
  const std::shared_ptr<weights::FedStream> stream;  // shared with the engine
  mutable std::mutex mutex;
  std::condition_variable settled;
  std::optional<Status> outcome;
  std::jthread thread;  // last: it uses the others
};

WeightReceiver::WeightReceiver(engine::Engine& engine, std::chrono::milliseconds patience)
    : engine_(engine), patience_(patience) {}

WeightReceiver::~WeightReceiver() {
  stop();
}

void WeightReceiver::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  close_open("the server is shutting down");
}

void WeightReceiver::close_open(const std::string& reason) {
  std::shared_ptr<Update> before;
  {
    const std::lock_guard lock(mutex_);
    before = std::exchange(update_, nullptr);
  }
  if (before != nullptr) {
    before->stream->break_off(reason);
    before->wait();
  }
}

Result<std::string> WeightReceiver::begin(std::string_view manifest) {
  std::optional<weights::WeightManifest> announced;
  try {
    announced = weights::read_manifest_message(manifest);
  } catch (const Error& error) {
    return Status::invalid(error.what());
  }
  close_open("another update began");
  const std::lock_guard lock(mutex_);
  if (stopped_) {
    return Status{StatusCode::kUnavailable, "the server is shutting down", {}, {}};
  }
  if (update_ != nullptr) {
    return Status{StatusCode::kResourceExhausted, "another update began just now", {}, {}};
  }
  update_ = std::make_shared<Update>(++last_, std::move(*announced), patience_);
  Update& update = *update_;
  update.thread = std::jthread([&engine = engine_, &update] {
    update.settle(engine.update_weights({.source = update.stream, .version = update.version}));
  });
  return fmt::format(R"({{"update":{}}})", update.number);
}

std::shared_ptr<WeightReceiver::Update> WeightReceiver::open(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return update_ != nullptr && update_->number == number ? update_ : nullptr;
}

Result<std::string> WeightReceiver::bucket(std::string_view message) {
  weights::BucketMessage taken;
  try {
    taken = weights::read_bucket_message(message);
  } catch (const Error& error) {
    return Status::invalid(error.what());
  }
  const std::shared_ptr<Update> update = open(taken.update);
  if (update == nullptr) {
    return not_open(taken.update);
  }
  const std::size_t count = taken.tensors.size();
  if (!update->stream->feed(std::move(taken.tensors))) {
    const Status outcome = update->wait();
    return outcome.ok() ? Status::invalid("the update has ended", "update") : outcome;
  }
  return fmt::format(R"({{"tensors":{}}})", count);
}

Result<std::string> WeightReceiver::end(std::string_view message) {
  weights::EndMessage end;
  try {
    end = weights::read_end_message(message);
  } catch (const Error& error) {
    return Status::invalid(error.what());
  }
  const std::shared_ptr<Update> update = open(end.update);
  if (update == nullptr) {
    return not_open(end.update);
  }
  update->stream->finish(std::move(end.root), std::move(end.value_digests));
  const Status outcome = update->wait();
  {
    const std::lock_guard lock(mutex_);
    if (update_ == update) {
      update_.reset();
    }
  }
  if (!outcome.ok()) {
    return outcome;
  }
  return fmt::format(R"({{"success":true,"weight_version":"{}"}})", update->version);
}

}  // namespace baleen::apps
