#pragma once
// What happens to running requests while the engine is paused.

#include <cstdint>

namespace baleen::engine {

enum class PauseMode : uint8_t {
  kAbort,    // all requests end with kAbort
  kRetract,  // running ones wait with the others; their pages may be given up
  kInPlace,  // running ones keep slots and pages
};

}  // namespace baleen::engine
