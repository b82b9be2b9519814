#pragma once
// Number of a sequence in order of arrival, as the engine's parts know it.

#include <cstdint>

#include "base/strong_id.h"

namespace baleen::engine {

using SequenceId = StrongId<struct SequenceIdTag, int64_t>;

}  // namespace baleen::engine
