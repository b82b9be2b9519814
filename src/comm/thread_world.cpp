#include "comm/thread_world.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "comm/thread_group.h"

namespace baleen::comm {
namespace {

class ThreadWorld final : public World {
 public:
  ThreadWorld(ThreadWorldState& state, int rank) : state_(state), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(state_.ended.size()); }

  std::unique_ptr<Group> group(const std::vector<int>& members) override {
    const auto self = std::find(members.begin(), members.end(), rank_);
    BALEEN_CHECK(self != members.end(), "rank {} is not in the group", rank_);
    const std::lock_guard<std::mutex> lock(state_.mutex);
    std::unique_ptr<ThreadGroupState>& group = state_.groups[members];
    if (group == nullptr) {
      group = std::make_unique<ThreadGroupState>(members);
    }
    return std::make_unique<ThreadGroup>(state_, *group, static_cast<int>(self - members.begin()));
  }

 private:
  ThreadWorldState& state_;
  int rank_;
};

void run_rank(ThreadWorldState& state, int rank, const std::function<void(World&)>& body) {
  std::exception_ptr error;
  std::string text = "unknown error";
  try {
    ThreadWorld world(state, rank);
    body(world);
  } catch (const std::exception& exception) {
    error = std::current_exception();
    text = exception.what();
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.ended[static_cast<std::size_t>(rank)] = 1;
  if (error != nullptr) {
    state.fail(error, "rank " + std::to_string(rank) + ": " + text);
  } else {
    state.wake_all();  // those who wait for this rank wait in vain
  }
}

}  // namespace

void run_ranks(int size,
               const ThreadWorldOptions& options,
               const std::function<void(World&)>& body) {
  BALEEN_CHECK(size > 0, "{} ranks", size);
  ThreadWorldState state(size, options);
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&state, &body, rank] { run_rank(state, rank, body); });
    }
  }
  if (state.failure != nullptr) {
    std::rethrow_exception(state.failure);
  }
}

}  // namespace baleen::comm
