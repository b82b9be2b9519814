#include "cuda_call_counter.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace {

std::atomic<int64_t> g_stream_waits{0};
std::atomic<int64_t> g_other_waits{0};
std::atomic<int64_t> g_memory{0};

/// Counts a call and hands it on to the runtime library.
template <class... Arguments>
cudaError_t counted(std::atomic<int64_t>& counter, const char* name, Arguments... arguments) {
  counter.fetch_add(1, std::memory_order_relaxed);
  using Function = cudaError_t (*)(Arguments...);
  const auto function = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
  if (function == nullptr) {
    std::abort();
  }
  return function(arguments...);
}

}  // namespace

baleen::CudaCalls baleen::cuda_calls() {
  return {.stream_waits = g_stream_waits.load(std::memory_order_relaxed),
          .other_waits = g_other_waits.load(std::memory_order_relaxed),
          .memory = g_memory.load(std::memory_order_relaxed)};
}

extern "C" {
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return counted(g_stream_waits, "cudaStreamSynchronize", stream);
}
cudaError_t cudaDeviceSynchronize() {
  return counted(g_other_waits, "cudaDeviceSynchronize");
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return counted(g_other_waits, "cudaEventSynchronize", event);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return counted(g_other_waits, "cudaMemcpy", to, from, bytes, kind);
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return counted(g_other_waits, "cudaMemset", to, value, bytes);
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return counted(g_memory, "cudaMalloc", memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  return counted(g_memory, "cudaFree", memory);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return counted(g_memory, "cudaMallocHost", memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) {
  return counted(g_memory, "cudaFreeHost", memory);
}
}
