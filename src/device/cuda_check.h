#pragma once
// Turns an error code of the CUDA runtime into a `DeviceError` that names the call and the place.
// After such an error the device state is not reused: the owner of the worker loop ends it.
//
//   BALEEN_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));

#include <string>

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace baleen::device {

/// The CUDA runtime or the device refused or failed.
class DeviceError : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void throw_cuda_error(cudaError_t code, const char* call, const char* file, int line);

/// Number of usable CUDA devices; 0 without a driver.
int device_count();
/// Multiprocessors of the current device.
int multiprocessor_count();
/// Name of the current device as the driver gives it, "NVIDIA H200".
std::string device_name();

}  // namespace baleen::device

#define BALEEN_CUDA_CHECK(call)                                                        \
  do {                                                                                 \
    const cudaError_t baleen_cuda_code = (call);                                       \
    if (baleen_cuda_code != cudaSuccess) {                                             \
      ::baleen::device::throw_cuda_error(baleen_cuda_code, #call, __FILE__, __LINE__); \
    }                                                                                  \
  } while (false)
