#include "apps/doctor/gpu_look.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"

namespace baleen::apps {
namespace {

constexpr const char* kDriverLibrary = "libcuda.so.1";
constexpr int32_t kCudaOfBuild = 13'000;  // of the CUDA libraries that the program is linked with
constexpr const char* kDriverOfBuild = "580";
constexpr int32_t kKernelMajor = 9;  // Hopper: what the kernels are compiled for
constexpr double kBusyShare = 0.05;  // of the memory, more than a driver takes for itself

// Numbers and signatures of the driver's interface; its handles of devices are int, of contexts
// pointers, of results int with 0 for success.
constexpr int kNoDevice = 100;
constexpr int kMultiprocessors = 16;
constexpr int kMajor = 75;
constexpr int kMinor = 76;

double gpu_gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

class Driver {
 public:
  explicit Driver(const SymbolLookup& lookup) : lookup_(lookup) {}

  /// Result of a call, -1 where the driver has no such function.
  template <class... Parameters, class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Parameters...)>(lookup_(name));
    return function == nullptr ? -1 : function(arguments...);
  }

  std::string words(const char* name, int result) const {
    const char* text = nullptr;
    if (result == -1) {
      return fmt::format("the driver's library has no {}", name);
    }
    call<int, const char**>("cuGetErrorString", result, &text);
    return fmt::format("{} gave error {}{}{}",
                       name,
                       result,
                       text != nullptr ? ": " : "",
                       text != nullptr ? text : "");
  }

  int attribute(int number, int device) const {
    int value = 0;
    call<int*, int, int>("cuDeviceGetAttribute", &value, number, device);
    return value;
  }

  /// Free bytes of a device's memory; -1 where no context can be had.
  int64_t free_bytes(int device) const {
    void* context = nullptr;
    if (call<void**, int>("cuDevicePrimaryCtxRetain", &context, device) != 0) {
      return -1;
    }
    size_t unused = 0;
    size_t total = 0;
    const bool known = call<void*>("cuCtxSetCurrent", context) == 0 &&
                       call<size_t*, size_t*>("cuMemGetInfo_v2", &unused, &total) == 0;
    call<int>("cuDevicePrimaryCtxRelease_v2", device);
    return known ? static_cast<int64_t>(unused) : -1;
  }

 private:
  const SymbolLookup& lookup_;
};

/// Number of the wished GPU; nothing for the processor.
std::optional<int32_t> wished_gpu(const std::string& device) {
  constexpr std::string_view kCuda = "cuda";
  if (device == "cpu") {
    return std::nullopt;
  }
  if (device == kCuda) {
    return 0;
  }
  int32_t number = -1;
  if (device.starts_with("cuda:")) {
    const char* end = device.data() + device.size();
    const auto [stop, error] = std::from_chars(device.data() + kCuda.size() + 1, end, number);
    if (error == std::errc() && stop == end && number >= 0) {
      return number;
    }
  }
  throw ConfigError(
      fmt::format("device \"{}\" is not known; known are cpu, cuda and cuda:N", device));
}

std::string no_gpu_words(const GpuFindings& found) {
  if (!found.has_driver) {
    return fmt::format(
        "none: NVIDIA's driver is not there ({} cannot be loaded). A model runs on the processor; "
        "to use a GPU install the driver, version {} or later",
        kDriverLibrary,
        kDriverOfBuild);
  }
  if (!found.problem.empty()) {
    return fmt::format(
        "the driver is there and does not work: {}. Does nvidia-smi show a GPU? In a container, "
        "was it started with --gpus all? Until then a model runs on the processor",
        found.problem);
  }
  return "the driver shows no GPU: see CUDA_VISIBLE_DEVICES and nvidia-smi. A model runs on the "
         "processor";
}

CheckLine gpu_line(int32_t number, const GpuFacts& gpu, bool is_wished, const GpuWish& wish) {
  CheckLine line;
  line.text = fmt::format("cuda:{} {}, {:.1f} GiB", number, gpu.name, gpu_gib(gpu.total_bytes));
  if (gpu.free_bytes >= 0) {
    line.text += fmt::format(" ({:.1f} free)", gpu_gib(gpu.free_bytes));
  }
  line.text += fmt::format(
      ", compute capability {}.{}, {} multiprocessors", gpu.major, gpu.minor, gpu.multiprocessors);
  const auto add = [&](Verdict verdict, const std::string& words) {
    line.verdict = std::max(line.verdict, verdict);
    line.text += "; " + words;
  };
  if (gpu.major != kKernelMajor) {
    add(Verdict::kWarn,
        fmt::format("the kernels are for {}.0 (Hopper): here a model runs on LibTorch's operators, "
                    "right but slow",
                    kKernelMajor));
  } else if (wish.built_with_cuda) {
    add(Verdict::kOk, "the kernels run here");
  }
  if (gpu.free_bytes < 0) {
    add(is_wished ? Verdict::kFail : Verdict::kWarn,
        "no program can open it now: is it reserved for one process (nvidia-smi -q -d COMPUTE)?");
    return line;
  }
  const int64_t taken = gpu.total_bytes - gpu.free_bytes;
  if (static_cast<double>(taken) > kBusyShare * static_cast<double>(gpu.total_bytes)) {
    add(Verdict::kWarn,
        fmt::format("{:.1f} GiB are taken by other programs: nvidia-smi names them",
                    gpu_gib(taken)));
  }
  if (is_wished && wish.weight_bytes > gpu.free_bytes) {
    add(Verdict::kFail,
        fmt::format("the weights need {:.1f} GiB, more than is free: baleen plan says what fits",
                    gpu_gib(wish.weight_bytes)));
  }
  return line;
}

}  // namespace

SymbolLookup cuda_driver_symbols() {
  void* const library = ::dlopen(kDriverLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {};
  }
  return [library](const char* name) { return ::dlsym(library, name); };
}

GpuFindings look_at_gpus(const SymbolLookup& lookup) {
  GpuFindings found;
  found.has_driver = static_cast<bool>(lookup);
  if (!found.has_driver) {
    return found;
  }
  const Driver driver(lookup);
  const auto failed = [&](const char* name, int result) {
    if (result != 0) {
      found.problem = driver.words(name, result);
    }
    return result != 0;
  };
  driver.call<int*>("cuDriverGetVersion", &found.cuda_version);  // works where cuInit does not
  const int started = driver.call<unsigned>("cuInit", 0U);
  int count = 0;
  if (started == kNoDevice || failed("cuInit", started) ||
      failed("cuDeviceGetCount", driver.call<int*>("cuDeviceGetCount", &count))) {
    return found;
  }
  for (int number = 0; number < count; ++number) {
    int device = 0;
    std::array<char, 256> name{};
    size_t total = 0;
    if (failed("cuDeviceGet", driver.call<int*, int>("cuDeviceGet", &device, number)) ||
        failed("cuDeviceGetName",
               driver.call<char*, int, int>(
                   "cuDeviceGetName", name.data(), static_cast<int>(name.size()) - 1, device)) ||
        failed("cuDeviceTotalMem_v2",
               driver.call<size_t*, int>("cuDeviceTotalMem_v2", &total, device))) {
      found.gpus.clear();
      return found;
    }
    found.gpus.push_back({.name = name.data(),
                          .total_bytes = static_cast<int64_t>(total),
                          .free_bytes = driver.free_bytes(device),
                          .major = driver.attribute(kMajor, device),
                          .minor = driver.attribute(kMinor, device),
                          .multiprocessors = driver.attribute(kMultiprocessors, device)});
  }
  return found;
}

std::vector<CheckLine> gpu_lines(const GpuFindings& found, const GpuWish& wish) {
  const std::optional<int32_t> wished = wished_gpu(wish.device);
  std::vector<CheckLine> lines;
  if (found.gpus.empty()) {
    const bool is_broken = found.has_driver && !found.problem.empty();
    lines.push_back({wished      ? Verdict::kFail
                     : is_broken ? Verdict::kWarn
                                 : Verdict::kOk,
                     no_gpu_words(found)});
    return lines;
  }
  for (size_t i = 0; i < found.gpus.size(); ++i) {
    const auto number = static_cast<int32_t>(i);
    lines.push_back(gpu_line(number, found.gpus[i], wished == number, wish));
  }
  if (wished && *wished >= static_cast<int32_t>(found.gpus.size())) {
    lines.push_back({Verdict::kFail,
                     fmt::format("--device {} is not there: {} GPU{} can be used",
                                 wish.device,
                                 found.gpus.size(),
                                 found.gpus.size() == 1 ? "" : "s")});
  }
  if (found.cuda_version > 0 && found.cuda_version < kCudaOfBuild) {
    lines.push_back({wished ? Verdict::kFail : Verdict::kWarn,
                     fmt::format("the driver runs CUDA {}.{} at most and the program needs {}.0: "
                                 "install driver {} or later",
                                 found.cuda_version / 1000,
                                 found.cuda_version % 1000 / 10,
                                 kCudaOfBuild / 1000,
                                 kDriverOfBuild)});
  }
  if (!wish.built_with_cuda) {
    lines.push_back({Verdict::kWarn,
                     "this program was built without CUDA and serves on the processor: `make build "
                     "PRESET=cuda` builds one with the kernels, or see docs/serving/on_a_gpu.md"});
  }
  return lines;
}

}  // namespace baleen::apps
