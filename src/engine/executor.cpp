#include "engine/executor.h"

namespace baleen::engine {

Status Executor::update_weights(const std::string&) {
  return Status::invalid("this executor's weights cannot be replaced");
}

Status Executor::update_weights(weights::WeightSource&) {
  return Status::invalid("this executor takes no weights from memory");
}

Status Executor::release_memory(MemoryParts) {
  return Status::invalid("this executor cannot release its memory");
}

Status Executor::resume_memory(MemoryParts) {
  return Status::invalid("this executor cannot release its memory");
}

}  // namespace baleen::engine
