#pragma once
// The engine requests that answer one API request (n choices, several prompts): submitted one by
// one, aborted together when the client leaves or one of them fails. Shared by the connection's
// callback and the answer; any thread. The engine outlives it.
//
//   auto group = std::make_shared<RequestGroup>(engine);
//   writer.on_disconnect([group] { group->abort_all(); });
//   Status status = group->submit(std::move(request), sink);

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace baleen::server {

class RequestGroup {
 public:
  explicit RequestGroup(engine::Engine& engine) : engine_(engine) {}

  /// kCancelled after abort_all().
  Status submit(engine::GenerationRequest request, std::shared_ptr<engine::OutputSink> sink);
  void abort_all();
  /// Ends the request `id` and those whose id is `id` and a number after a dash, also when they are
  /// submitted later.
  void abort(const std::string& id);

 private:
  bool is_aborted(const std::string& id) const;  // with the mutex held

  engine::Engine& engine_;
  std::mutex mutex_;
  bool aborted_ = false;
  std::vector<std::string> aborted_ids_;
  std::vector<std::string> ids_;
};

}  // namespace baleen::server
