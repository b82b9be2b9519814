#include "comm/thread_group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "comm/ordered_sum.h"

namespace baleen::comm {
namespace {

const std::byte* bytes_at(const void* data, int64_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
}

int64_t sum_of(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

std::string describe(const ThreadCall& call) {
  return fmt::format("{} of {} {} (reduction {}, root {})",
                     call.name,
                     call.count,
                     element_name(call.element),
                     call.reduction == Reduction::kSum ? "sum" : "max",
                     call.root);
}

bool fit_together(const ThreadCall& a, const ThreadCall& b) {
  return std::string_view(a.name) == b.name && a.count == b.count && a.element == b.element &&
         a.reduction == b.reduction && a.root == b.root;
}

}  // namespace

const char* element_name(Element element) {
  switch (element) {
    case Element::kFloat32:
      return "float32";
    case Element::kFloat64:
      return "float64";
    case Element::kInt64:
      return "int64";
  }
  return "?";
}

int64_t element_bytes(Element element) {
  return element == Element::kFloat32 ? 4 : 8;
}

void ThreadWorldState::wake_all() {
  for (auto& [members, group] : groups) {
    group->changed.notify_all();
  }
}

void ThreadWorldState::fail(std::exception_ptr error, const std::string& text) {
  if (failure == nullptr) {
    failure = std::move(error);
    failure_text = text;
  }
  wake_all();
}

void ThreadGroup::fail(const std::string& text) {
  const CommError error(text);
  world_.fail(std::make_exception_ptr(error), text);
  throw error;
}

void ThreadGroup::throw_if_failed() const {
  if (world_.failure != nullptr) {
    throw CommError("another rank failed: " + world_.failure_text);
  }
}

template <class Ready, class Missing>
void ThreadGroup::wait(Lock& lock, const char* call, const Ready& ready, const Missing& missing) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(world_.options.wait_timeout_ms);
  while (!ready()) {
    throw_if_failed();
    const std::vector<int> absent = missing();
    const auto gone = std::find_if(absent.begin(), absent.end(), [&](int rank) {
      return world_.ended[static_cast<std::size_t>(rank)] != 0;
    });
    const int self = members()[static_cast<std::size_t>(rank())];
    if (gone != absent.end()) {
      fail(fmt::format("rank {} waits in {} of ranks [{}], but rank {} has ended",
                       self,
                       call,
                       fmt::join(members(), ", "),
                       *gone));
    }
    if (state_.changed.wait_until(lock, deadline) == std::cv_status::timeout && !ready()) {
      throw_if_failed();
      fail(fmt::format("rank {} waited {} ms in {} of ranks [{}] for ranks [{}]",
                       self,
                       world_.options.wait_timeout_ms,
                       call,
                       fmt::join(members(), ", "),
                       fmt::join(missing(), ", ")));
    }
  }
}

std::string ThreadGroup::mismatch() const {
  const ThreadCall& first = call_of(0);
  for (int other = 1; other < size(); ++other) {
    const ThreadCall& call = call_of(other);
    if (!fit_together(first, call)) {
      return fmt::format("ranks [{}]: rank {} calls {}, rank {} calls {}",
                         fmt::join(members(), ", "),
                         members()[0],
                         describe(first),
                         members()[static_cast<std::size_t>(other)],
                         describe(call));
    }
  }
  for (int from = 0; from < size() && !first.in_bytes.empty(); ++from) {
    for (int to = 0; to < size(); ++to) {
      const int64_t sent = call_of(from).in_bytes[static_cast<std::size_t>(to)];
      const int64_t expected = call_of(to).out_bytes[static_cast<std::size_t>(from)];
      if (sent != expected) {
        return fmt::format("all_to_all: rank {} sends {} bytes to rank {}, which expects {}",
                           members()[static_cast<std::size_t>(from)],
                           sent,
                           members()[static_cast<std::size_t>(to)],
                           expected);
      }
    }
  }
  return {};
}

void ThreadGroup::meet(const ThreadCall& call) {
  Lock lock(world_.mutex);
  throw_if_failed();
  const auto self = static_cast<std::size_t>(rank());
  state_.calls[self] = call;
  state_.present[self] = 1;
  if (++state_.arrived == state_.members.size()) {
    if (const std::string text = mismatch(); !text.empty()) {
      fail(text);
    }
    state_.arrived = 0;
    std::fill(state_.present.begin(), state_.present.end(), 0);
    ++state_.meetings;
    state_.changed.notify_all();
    return;
  }
  const int64_t meeting = state_.meetings;
  wait(
      lock,
      call.name,
      [&] { return state_.meetings != meeting; },
      [&] {
        std::vector<int> absent;
        for (std::size_t i = 0; i < state_.members.size(); ++i) {
          if (state_.present[i] == 0) {
            absent.push_back(state_.members[i]);
          }
        }
        return absent;
      });
}

void ThreadGroup::part() {
  Lock lock(world_.mutex);
  if (++state_.arrived == state_.members.size()) {
    state_.arrived = 0;
    ++state_.meetings;
    state_.changed.notify_all();
    return;
  }
  const int64_t meeting = state_.meetings;
  state_.changed.wait(lock, [&] { return state_.meetings != meeting; });
}

void ThreadGroup::all_reduce(
    const void* in, void* out, int64_t count, Element element, Reduction reduction) {
  meet({.name = "all_reduce",
        .count = count,
        .element = element,
        .reduction = reduction,
        .in = in,
        .out = out});
  // Every rank reduces one slice, then reads the other slices from those who made them. Only this
  // rank reads its slice of anybody's input, so input and output may be one.
  const int64_t width = element_bytes(element);
  const auto begin_of = [&](int64_t slice) { return count * slice / size(); };
  const int64_t begin = begin_of(rank());
  std::vector<const void*> sources;
  for (int member = 0; member < size(); ++member) {
    sources.push_back(bytes_at(call_of(member).in, begin * width));
  }
  reduce_in_order(sources,
                  static_cast<std::byte*>(out) + begin * width,
                  begin_of(rank() + 1) - begin,
                  element,
                  reduction);
  part();
  for (int member = 0; member < size(); ++member) {
    if (member != rank()) {
      const int64_t offset = begin_of(member) * width;
      copy_bytes(static_cast<std::byte*>(out) + offset,
                 bytes_at(call_of(member).out, offset),
                 begin_of(member + 1) * width - offset);
    }
  }
  part();
  count_bytes(size() > 1 ? count * width : 0);
}

void ThreadGroup::reduce_scatter(const void* in, void* out, int64_t count, Element element) {
  meet({.name = "reduce_scatter", .count = count, .element = element, .in = in});
  const int64_t offset = rank() * count * element_bytes(element);
  std::vector<const void*> sources;
  for (int member = 0; member < size(); ++member) {
    sources.push_back(bytes_at(call_of(member).in, offset));
  }
  reduce_in_order(sources, out, count, element, Reduction::kSum);
  part();
  count_bytes((size() - 1) * count * element_bytes(element));
}

void ThreadGroup::all_gather(const void* in, void* out, int64_t bytes) {
  meet({.name = "all_gather", .count = bytes, .in = in});
  for (int member = 0; member < size(); ++member) {
    copy_bytes(static_cast<std::byte*>(out) + member * bytes, call_of(member).in, bytes);
  }
  part();
  count_bytes(size() > 1 ? bytes : 0);
}

void ThreadGroup::all_to_all(const void* in,
                             std::span<const int64_t> in_bytes,
                             void* out,
                             std::span<const int64_t> out_bytes) {
  BALEEN_CHECK(
      in_bytes.size() == static_cast<std::size_t>(size()) && out_bytes.size() == in_bytes.size(),
      "{} and {} sizes for {} ranks",
      in_bytes.size(),
      out_bytes.size(),
      size());
  meet({.name = "all_to_all", .in = in, .in_bytes = in_bytes, .out_bytes = out_bytes});
  const auto self = static_cast<std::size_t>(rank());
  int64_t position = 0;
  for (int member = 0; member < size(); ++member) {
    const ThreadCall& peer = call_of(member);
    const int64_t bytes = out_bytes[static_cast<std::size_t>(member)];
    copy_bytes(static_cast<std::byte*>(out) + position,
               bytes_at(peer.in, sum_of(peer.in_bytes.first(self))),
               bytes);
    position += bytes;
  }
  part();
  count_bytes(sum_of(in_bytes) - in_bytes[self]);
}

void ThreadGroup::broadcast(void* data, int64_t bytes, int root) {
  BALEEN_CHECK(root >= 0 && root < size(), "root {} of {} ranks", root, size());
  meet({.name = "broadcast", .count = bytes, .root = root, .in = data});
  if (rank() != root) {
    copy_bytes(data, call_of(root).in, bytes);
  }
  part();
  count_bytes(rank() == root && size() > 1 ? bytes : 0);
}

void ThreadGroup::barrier() {
  meet({.name = "barrier"});
  part();
}

void ThreadGroup::send(const void* data, int64_t bytes, int to) {
  BALEEN_CHECK(to >= 0 && to < size() && to != rank(), "rank {} sends to {}", rank(), to);
  std::vector<std::byte> message(bytes_at(data, 0), bytes_at(data, bytes));
  Lock lock(world_.mutex);
  throw_if_failed();
  std::deque<std::vector<std::byte>>& queue = state_.messages[{rank(), to}];
  wait(
      lock,
      "send",
      [&] { return static_cast<int64_t>(queue.size()) < world_.options.max_pending_messages; },
      [&] { return std::vector<int>{members()[static_cast<std::size_t>(to)]}; });
  queue.push_back(std::move(message));
  state_.changed.notify_all();
  count_bytes(bytes);
}

void ThreadGroup::receive(void* data, int64_t bytes, int from) {
  BALEEN_CHECK(from >= 0 && from < size() && from != rank(), "rank {} of {}", rank(), from);
  Lock lock(world_.mutex);
  throw_if_failed();
  std::deque<std::vector<std::byte>>& queue = state_.messages[{from, rank()}];
  wait(
      lock,
      "receive",
      [&] { return !queue.empty(); },
      [&] { return std::vector<int>{members()[static_cast<std::size_t>(from)]}; });
  const std::vector<std::byte> message = std::move(queue.front());
  queue.pop_front();
  state_.changed.notify_all();
  if (static_cast<int64_t>(message.size()) != bytes) {
    fail(fmt::format("rank {} expects a message of {} bytes from rank {}, got {}",
                     members()[static_cast<std::size_t>(rank())],
                     bytes,
                     members()[static_cast<std::size_t>(from)],
                     message.size()));
  }
  lock.unlock();
  copy_bytes(data, message.data(), bytes);
}

}  // namespace baleen::comm
