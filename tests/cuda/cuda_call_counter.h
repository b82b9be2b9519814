#pragma once
// Counts this program's calls of the CUDA runtime that wait for the device or take or give back
// memory, to show that a step makes none that it need not. Linking the source file puts functions
// of its own before those of the runtime library. Any thread.
//
//   const CudaCalls before = cuda_calls();  ...  EXPECT_EQ(cuda_calls().memory, before.memory);

#include <cstdint>

namespace baleen {

struct CudaCalls {
  int64_t stream_waits = 0;  // cudaStreamSynchronize
  int64_t other_waits = 0;   // of an event or the device; copies and fills that wait
  int64_t memory = 0;        // allocations and releases, of the device or pinned
};
CudaCalls cuda_calls();

}  // namespace baleen
