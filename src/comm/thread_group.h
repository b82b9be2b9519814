#pragma once
// Groups of rank threads. A collective is a meeting: everybody shows where its data lies, reads
// what it needs from the others, and nobody leaves before all have read. Made by thread_world.cpp.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/thread_world.h"

namespace baleen::comm {

/// What a member brings to a meeting. Pointers are valid until the members part.
struct ThreadCall {
  const char* name = "";
  int64_t count = 0;  // elements or bytes; 0 where members may differ
  Element element = Element::kFloat64;
  Reduction reduction = Reduction::kSum;
  int root = 0;
  const void* in = nullptr;
  void* out = nullptr;
  std::span<const int64_t> in_bytes = {};   // all_to_all only
  std::span<const int64_t> out_bytes = {};  // likewise
};

/// Shared by the members of a group. Everything is guarded by the world's mutex, except that calls
/// of others may be read between meeting and parting.
struct ThreadGroupState {
  explicit ThreadGroupState(const std::vector<int>& group_members)
      : members(group_members), calls(group_members.size()), present(group_members.size()) {}

  const std::vector<int> members;
  std::condition_variable changed;
  std::vector<ThreadCall> calls;
  std::vector<char> present;  // who waits in the current meeting
  std::size_t arrived = 0;
  int64_t meetings = 0;                                                        // and partings
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> messages;  // by (from, to)
};

/// Shared by all ranks; owned by run_ranks, which outlives them.
struct ThreadWorldState {
  ThreadWorldState(int size, const ThreadWorldOptions& world_options)
      : options(world_options), ended(static_cast<std::size_t>(size)) {}

  const ThreadWorldOptions options;
  std::mutex mutex;
  std::exception_ptr failure;  // the first
  std::string failure_text;
  std::vector<char> ended;
  std::map<std::vector<int>, std::unique_ptr<ThreadGroupState>> groups;

  /// Keeps the first failure and wakes everybody. The mutex must be held.
  void fail(std::exception_ptr error, const std::string& text);
  void wake_all();
};

class ThreadGroup final : public Group {
 public:
  ThreadGroup(ThreadWorldState& world, ThreadGroupState& state, int rank)
      : Group(state.members, rank), world_(world), state_(state) {}

  void all_reduce(
      const void* in, void* out, int64_t count, Element element, Reduction reduction) override;
  void reduce_scatter(const void* in, void* out, int64_t count, Element element) override;
  void all_gather(const void* in, void* out, int64_t bytes) override;
  void all_to_all(const void* in,
                  std::span<const int64_t> in_bytes,
                  void* out,
                  std::span<const int64_t> out_bytes) override;
  void broadcast(void* data, int64_t bytes, int root) override;
  void barrier() override;
  void send(const void* data, int64_t bytes, int to) override;
  void receive(void* data, int64_t bytes, int from) override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  /// Returns when all members are here and their calls fit together.
  void meet(const ThreadCall& call);
  /// Returns when all members have read; never fails, because others still read our memory.
  void part();
  /// Waits until `ready`; a failure of the world or the time limit throws. `waited_for` tells who
  /// is missing and throws, by way of `fail`, if they cannot come any more.
  template <class Ready, class Missing>
  void wait(Lock& lock, const char* call, const Ready& ready, const Missing& missing);
  [[noreturn]] void fail(const std::string& text);
  void throw_if_failed() const;
  /// Text of the first disagreement between the members' calls, or empty.
  std::string mismatch() const;
  const ThreadCall& call_of(int rank) const { return state_.calls[static_cast<std::size_t>(rank)]; }

  ThreadWorldState& world_;
  ThreadGroupState& state_;
};

}  // namespace baleen::comm
