#include "device/cuda_check.h"

#include <string>

namespace baleen::device {

void throw_cuda_error(cudaError_t code, const char* call, const char* file, int line) {
  cudaGetLastError();  // It is told here; later launches, LibTorch's too, must not find it again.
  throw DeviceError(std::string("CUDA: ") + cudaGetErrorName(code) + " (" +
                    cudaGetErrorString(code) + ") from " + call + " at " + file + ":" +
                    std::to_string(line));
}

int device_count() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    cudaGetLastError();  // A missing driver is an answer here, not an error to leave behind.
    return 0;
  }
  return count;
}

int multiprocessor_count() {
  int device = 0;
  int count = 0;
  BALEEN_CUDA_CHECK(cudaGetDevice(&device));
  BALEEN_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

std::string device_name() {
  int device = 0;
  cudaDeviceProp properties = {};
  BALEEN_CUDA_CHECK(cudaGetDevice(&device));
  BALEEN_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

}  // namespace baleen::device
