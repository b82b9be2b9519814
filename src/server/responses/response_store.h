#pragma once
// The last responses of POST /v1/responses, kept in memory for GET and for requests that continue
// one. Shared by the API server and the answers in progress; any thread.
//
//   store->put(id, {body, history});      // again when it has ended
//   std::optional<StoredResponse> earlier = store->find(id);

#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_message.h"

namespace baleen::server {

struct StoredResponse {
  std::string body;  // JSON, as the client got it
  /// The conversation up to and with the answer, without instructions; empty while it is made.
  std::vector<text::ChatMessage> history;
};

class ResponseStore {
 public:
  /// Of more than `max_responses` the oldest go; 0 keeps none.
  explicit ResponseStore(size_t max_responses) : max_responses_(max_responses) {}

  void put(const std::string& id, StoredResponse response);
  std::optional<StoredResponse> find(std::string_view id) const;

 private:
  const size_t max_responses_;
  mutable std::mutex mutex_;
  std::map<std::string, StoredResponse, std::less<>> responses_;
  std::list<std::string> order_;  // oldest first
};

}  // namespace baleen::server
