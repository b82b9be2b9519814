#include "rl/weight_publisher.h"

#include <string>

#include "base/error.h"
#include "engine/engine.h"

namespace baleen::rl {
namespace {

void must(const Status& status, const char* what) {
  if (!status.ok()) {
    throw Error(std::string("publishing weights: ") + what + ": " + status.message);
  }
}

}  // namespace

void AliasPublisher::publish(engine::Engine& engine, int64_t version) {
  must(engine.pause(engine::PauseMode::kRetract), "pause");
  must(engine.flush_cache(), "flush the cache");
  must(engine.name_weights(std::to_string(version), /*abort_requests=*/false), "name the weights");
  must(engine.resume(), "resume");
}

}  // namespace baleen::rl
