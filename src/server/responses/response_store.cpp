#include "server/responses/response_store.h"

#include <utility>

namespace baleen::server {

void ResponseStore::put(const std::string& id, StoredResponse response) {
  if (max_responses_ == 0) {
    return;
  }
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] = responses_.insert_or_assign(id, std::move(response));
  if (is_new) {
    order_.push_back(id);
  }
  if (order_.size() > max_responses_) {
    responses_.erase(order_.front());
    order_.pop_front();
  }
}

std::optional<StoredResponse> ResponseStore::find(std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found = responses_.find(id);
  return found != responses_.end() ? std::optional(found->second) : std::nullopt;
}

}  // namespace baleen::server
