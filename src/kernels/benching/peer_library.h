#pragma once
// Public kernels of others as shared libraries, measured beside ours. They are built apart from
// this project, none of their code is in it; a folder of them is named on the command line. A
// library that is missing, or lacks a function, skips the rows that would need it, by name.
//
//   PeerLibraries peers("peers");                              // loads peers/*.so, by name
//   for (const PeerLinear& peer : peers.linears()) { peer.launch(call, stream); }
//
// C interface of such a library:
//   const char* baleen_peer_name();            // "name-commit"
//   int baleen_peer_fp8_linear(const PeerLinearCall*, cudaStream_t);   // 0: launched, 1: not this
//                                                                      // shape, else a failure

#include <cstdint>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

namespace baleen::kernels::benching {

/// y = x W^T with scales per 128 x 128 of W and per 128 inputs of x. Plain C layout.
struct PeerLinearCall {
  const void* weight = nullptr;          // e4m3 [outputs, inputs]
  const float* weight_scales = nullptr;  // [outputs / 128, inputs / 128]
  const void* x = nullptr;               // e4m3 [tokens, inputs]
  const float* x_scales = nullptr;       // [inputs / 128, tokens rounded up to four]
  void* y = nullptr;                     // bf16 [tokens, outputs]
  int32_t tokens = 0;
  int32_t outputs = 0;
  int32_t inputs = 0;
};

struct PeerLinear {
  std::string name;
  int (*launch)(const PeerLinearCall*, cudaStream_t) = nullptr;
};

class PeerLibraries {
 public:
  /// Loads every *.so of `folder`; an empty name loads none. Libraries stay loaded until the
  /// program ends: their kernels may still be in graphs. Throws ConfigError for a library that
  /// cannot be loaded or has no name.
  explicit PeerLibraries(const std::string& folder);
  const std::vector<PeerLinear>& linears() const { return linears_; }

 private:
  std::vector<PeerLinear> linears_;
};

}  // namespace baleen::kernels::benching
