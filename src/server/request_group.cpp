#include "server/request_group.h"

#include <utility>

namespace baleen::server {

Status RequestGroup::submit(engine::GenerationRequest request,
                            std::shared_ptr<engine::OutputSink> sink) {
  const std::string id = request.id;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) {
      return {StatusCode::kCancelled, "the request was aborted", {}, {}};
    }
    ids_.push_back(id);
  }
  Status status = engine_.submit(std::move(request), std::move(sink));
  bool aborted = false;
  {
    const std::lock_guard lock(mutex_);
    aborted = aborted_;
  }
  if (aborted) {
    engine_.abort(id);  // abort_all() may have come before the engine knew the request
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

}  // namespace baleen::server
