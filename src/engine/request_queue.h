#pragma once
// Who waits for a slot, and who is next: higher priority first; then those that were preempted;
// then the client that was served least; then the order of arrival. Served is counted in tokens
// run, so a client with many or long requests does not push the others aside. A client that comes
// back starts level with the least served of those that are there: time away earns nothing. Owned
// by the scheduler; one thread.
//
//   queue.push(id, {.priority = 0, .client = "team-a"});
//   SequenceId next = queue.front();          // invalid: nobody waits
//   queue.erase(next);
//   queue.charge(next, 512);                  // tokens that it ran
//   queue.forget(next);                       // it has ended

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "engine/sequence_id.h"

namespace baleen::engine {

/// How a request stands to others.
struct QueuePlace {
  int32_t priority = 0;     // larger first
  std::string client = {};  // requests of one client share its turn; empty is a client too
};

class RequestQueue {
  struct Client {
    int64_t served = 0;     // tokens
    int32_t num_known = 0;  // sequences
  };

 public:
  /// Where a known sequence's tokens are charged; valid until it is forgotten.
  using Account = Client*;

  /// A new sequence, behind the others of its client.
  void push(SequenceId id, QueuePlace place);
  /// One that waits again.
  void push_preempted(SequenceId id);
  SequenceId front() const;
  /// Takes a waiting sequence out; it stays known.
  void erase(SequenceId id);
  /// A known sequence ran so many tokens.
  void charge(SequenceId id, int64_t num_tokens) { charge(account(id), num_tokens); }
  /// The same for one that is charged often.
  void charge(Account account, int64_t num_tokens) { account->served += num_tokens; }
  Account account(SequenceId id) { return &known_.at(id).client->second; }
  /// Ends a sequence that does not wait.
  void forget(SequenceId id);

  int32_t size() const { return num_waiting_; }
  bool empty() const { return num_waiting_ == 0; }
  int32_t priority(SequenceId id) const { return known_.at(id).priority; }
  /// Of those that have never been taken out, who came first; invalid: there are none.
  SequenceId oldest_new() const { return new_.empty() ? SequenceId() : *new_.begin(); }

 private:
  using ClientMap = std::map<std::string, Client>;
  enum class Waits : uint8_t { kNot, kNew, kPreempted };
  struct Entry {
    int32_t priority = 0;
    ClientMap::iterator client;
    Waits waits = Waits::kNot;
  };
  struct Level {
    std::set<SequenceId> preempted;
    std::unordered_map<const Client*, std::set<SequenceId>> by_client;  // none empty
  };

  std::unordered_map<SequenceId, Entry> known_;
  ClientMap clients_;  // that have a known sequence
  std::map<int32_t, Level, std::greater<>> levels_;
  std::set<SequenceId> new_;  // all that wait as new
  int32_t num_waiting_ = 0;
};

}  // namespace baleen::engine
