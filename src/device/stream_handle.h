#pragma once
// The CUDA stream type by its forward declaration, so that contract headers of kernels compile in
// builds without CUDA. `StreamHandle` is the very type `cudaStream_t`.
//
//   void launch(const RouterParams& params, device::StreamHandle stream);

struct CUstream_st;

namespace baleen::device {

using StreamHandle = CUstream_st*;

}  // namespace baleen::device
