#include "server/operations/live_requests.h"

#include <set>
#include <utility>

namespace baleen::server {

std::shared_ptr<LiveRequests::Entry> LiveRequests::add(const std::vector<std::string>& ids,
                                                       const std::shared_ptr<RequestGroup>& group) {
  std::vector<std::string> added;
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& id : ids) {
      if (groups_.emplace(id, group).second) {
        added.push_back(id);
      }
    }
  }
  return std::make_shared<Entry>(shared_from_this(), std::move(added));
}

void LiveRequests::remove(const std::vector<std::string>& ids) {
  const std::lock_guard lock(mutex_);
  for (const std::string& id : ids) {
    groups_.erase(id);
  }
}

bool LiveRequests::abort(const std::string& id) {
  std::shared_ptr<RequestGroup> group;
  {
    const std::lock_guard lock(mutex_);
    const auto found = groups_.find(id);
    if (found != groups_.end()) {
      group = found->second.lock();
    }
  }
  if (group) {
    group->abort(id);
  }
  return group != nullptr;
}

size_t LiveRequests::abort_all() {
  std::set<std::shared_ptr<RequestGroup>> groups;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, weak] : groups_) {
      if (auto group = weak.lock()) {
        groups.insert(std::move(group));
      }
    }
  }
  for (const std::shared_ptr<RequestGroup>& group : groups) {
    group->abort_all();
  }
  return groups.size();
}

}  // namespace baleen::server
