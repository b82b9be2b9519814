#pragma once
// What NVIDIA's driver says of the GPUs of this machine. CUDA is not linked: the driver's library
// is loaded where there is one, so that every build of the program can look. Torch-free; one
// thread.
//
//   const GpuFindings found = look_at_gpus(cuda_driver_symbols());
//   for (const CheckLine& line : gpu_lines(found, {.device = "cuda:0"})) { ... }

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace baleen::apps {

/// Address of a function of the driver's library, null when it has none of that name.
using SymbolLookup = std::function<void*(const char* name)>;

/// Of libcuda.so.1, which stays loaded; empty when it cannot be loaded.
SymbolLookup cuda_driver_symbols();

struct GpuFacts {
  std::string name;             // "NVIDIA H200"
  int64_t total_bytes = 0;      // of its memory
  int64_t free_bytes = -1;      // -1: the driver did not say
  int32_t major = 0;            // compute capability
  int32_t minor = 0;            //
  int32_t multiprocessors = 0;  //
};

struct GpuFindings {
  bool has_driver = false;
  std::string problem;           // the driver's words where it did not work; then there are no GPUs
  int32_t cuda_version = 0;      // newest that the driver runs: 13000 is 13.0; 0: not said
  std::vector<GpuFacts> gpus{};  // by their number
};

/// Never throws: what goes wrong is in the findings. Asking for free memory opens and closes a
/// context of each GPU, which takes up to a second.
GpuFindings look_at_gpus(const SymbolLookup& driver);

enum class Verdict { kOk, kWarn, kFail };

/// What was found of one thing, and what is to be done about it.
struct CheckLine {
  Verdict verdict = Verdict::kOk;
  std::string text;
};

struct GpuWish {
  std::string device = "cpu";  // where serving is to run: cpu, cuda or cuda:N
  bool built_with_cuda = false;
  int64_t weight_bytes = 0;  // of the checkpoint, 0: not known
};

/// At least one line; a failure only where `device` asks for a GPU that cannot be used. Throws
/// ConfigError for another name of a device.
std::vector<CheckLine> gpu_lines(const GpuFindings& found, const GpuWish& wish);

}  // namespace baleen::apps
