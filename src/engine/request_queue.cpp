#include "engine/request_queue.h"

#include <algorithm>

#include "base/check.h"

namespace baleen::engine {

void RequestQueue::push(SequenceId id, QueuePlace place) {
  const auto [client, is_new] = clients_.try_emplace(std::move(place.client));
  if (is_new) {
    int64_t least = -1;
    for (const auto& [name, other] : clients_) {
      if (other.num_known > 0 && (least < 0 || other.served < least)) {
        least = other.served;
      }
    }
    client->second.served = std::max<int64_t>(least, 0);
  }
  const bool is_unknown = known_.try_emplace(id, Entry{place.priority, client, Waits::kNew}).second;
  BALEEN_CHECK(is_unknown, "sequence {} is already known", id.value());
  ++client->second.num_known;
  levels_[place.priority].by_client[&client->second].insert(id);
  new_.insert(id);
  ++num_waiting_;
}

void RequestQueue::push_preempted(SequenceId id) {
  Entry& entry = known_.at(id);
  BALEEN_CHECK(entry.waits == Waits::kNot, "sequence {} waits already", id.value());
  entry.waits = Waits::kPreempted;
  levels_[entry.priority].preempted.insert(id);
  ++num_waiting_;
}

SequenceId RequestQueue::front() const {
  if (levels_.empty()) {
    return {};
  }
  const Level& level = levels_.begin()->second;
  if (!level.preempted.empty()) {
    return *level.preempted.begin();
  }
  SequenceId best;
  int64_t least = 0;
  for (const auto& [client, ids] : level.by_client) {
    const SequenceId first = *ids.begin();
    if (!best.valid() || client->served < least || (client->served == least && first < best)) {
      best = first;
      least = client->served;
    }
  }
  return best;
}

void RequestQueue::erase(SequenceId id) {
  Entry& entry = known_.at(id);
  const auto level = levels_.find(entry.priority);
  BALEEN_CHECK(entry.waits != Waits::kNot && level != levels_.end(),
               "sequence {} does not wait",
               id.value());
  if (entry.waits == Waits::kPreempted) {
    level->second.preempted.erase(id);
  } else {
    new_.erase(id);
    auto& by_client = level->second.by_client;
    const auto ids = by_client.find(&entry.client->second);
    ids->second.erase(id);
    if (ids->second.empty()) {
      by_client.erase(ids);
    }
  }
  if (level->second.preempted.empty() && level->second.by_client.empty()) {
    levels_.erase(level);
  }
  entry.waits = Waits::kNot;
  --num_waiting_;
}

void RequestQueue::forget(SequenceId id) {
  const auto found = known_.find(id);
  BALEEN_CHECK(found != known_.end() && found->second.waits == Waits::kNot,
               "sequence {} is unknown or waits",
               id.value());
  const ClientMap::iterator client = found->second.client;
  known_.erase(found);
  if (--client->second.num_known == 0) {
    clients_.erase(client);
  }
}

}  // namespace baleen::engine
