#pragma once
// The requests being answered, by the ids that clients know, so that one can be ended by its id.
// Owned by the API server, shared with the answers in progress; any thread.
//
//   auto entry = live->add({"chatcmpl-1"}, group);   // as long as the entry lives
//   live->abort("chatcmpl-1");

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/request_group.h"

namespace baleen::server {

class LiveRequests : public std::enable_shared_from_this<LiveRequests> {
 public:
  /// Takes the group out again when it ends.
  class Entry {
   public:
    Entry(std::shared_ptr<LiveRequests> owner, std::vector<std::string> ids)
        : owner_(std::move(owner)), ids_(std::move(ids)) {}
    ~Entry() { owner_->remove(ids_); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    const std::shared_ptr<LiveRequests> owner_;
    const std::vector<std::string> ids_;
  };

  /// An id that is there already stays with its request.
  std::shared_ptr<Entry> add(const std::vector<std::string>& ids,
                             const std::shared_ptr<RequestGroup>& group);
  /// Ends the choices of this id, or of a prompt with this id. False when there is none.
  bool abort(const std::string& id);
  /// Ends all; returns how many there were.
  size_t abort_all();

 private:
  void remove(const std::vector<std::string>& ids);

  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<RequestGroup>, std::less<>> groups_;
};

}  // namespace baleen::server
