#include "runner/decode/decode_memory.h"

#include <algorithm>

namespace baleen::runner {

uint8_t* DecodeMemory::filled(int64_t bytes, std::span<const uint8_t> pattern) {
  device::Buffer<uint8_t>& block = blocks_.emplace_back(bytes);
  bytes_ += bytes;
  if (pattern.empty()) {
    block.fill_bytes(0);
    return block.data();
  }
  int64_t done = std::min<int64_t>(bytes, static_cast<int64_t>(pattern.size()));
  BALEEN_CUDA_CHECK(cudaMemcpy(
      block.data(), pattern.data(), static_cast<std::size_t>(done), cudaMemcpyHostToDevice));
  while (done < bytes) {
    // Whole patterns, so that every repetition begins where one ends.
    const int64_t more = std::min(done, bytes - done);
    BALEEN_CUDA_CHECK(cudaMemcpy(block.data() + done,
                                 block.data(),
                                 static_cast<std::size_t>(more),
                                 cudaMemcpyDeviceToDevice));
    done += more;
  }
  BALEEN_CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));
  return block.data();
}

}  // namespace baleen::runner
