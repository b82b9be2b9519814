#include "server/request_group.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace baleen::server {
namespace {

bool belongs_to(const std::string& request, const std::string& id) {
  return request.starts_with(id) && (request.size() == id.size() || request[id.size()] == '-');
}

}  // namespace

bool RequestGroup::is_aborted(const std::string& id) const {
  return aborted_ ||
         std::any_of(aborted_ids_.begin(), aborted_ids_.end(), [&](const std::string& aborted) {
           return belongs_to(id, aborted);
         });
}

Status RequestGroup::submit(engine::GenerationRequest request,
                            std::shared_ptr<engine::OutputSink> sink) {
  const std::string id = request.id;
  {
    const std::lock_guard lock(mutex_);
    if (is_aborted(id)) {
      return {StatusCode::kCancelled, "the request was aborted", {}, {}};
    }
    ids_.push_back(id);
  }
  Status status = engine_.submit(std::move(request), std::move(sink));
  bool aborted = false;
  {
    const std::lock_guard lock(mutex_);
    aborted = is_aborted(id);
  }
  if (aborted) {
    engine_.abort(id);  // abort() may have come before the engine knew the request
  }
  return status;
}

void RequestGroup::abort_all() {
  std::vector<std::string> ids;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    ids.swap(ids_);
  }
  for (const std::string& id : ids) {
    engine_.abort(id);
  }
}

void RequestGroup::abort(const std::string& id) {
  std::vector<std::string> ids;
  {
    const std::lock_guard lock(mutex_);
    aborted_ids_.push_back(id);
    std::copy_if(
        ids_.begin(), ids_.end(), std::back_inserter(ids), [&](const std::string& request) {
          return belongs_to(request, id);
        });
  }
  for (const std::string& request : ids) {
    engine_.abort(request);
  }
}

}  // namespace baleen::server
