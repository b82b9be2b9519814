// What is said of GPUs, against a driver that is made up: every state in which one is found.
#include "apps/doctor/gpu_look.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"

namespace baleen::apps {
namespace {

constexpr int64_t kOneGib = 1LL << 30;

/// The driver's answers; one machine at a time, as its functions have no state of their own.
struct MadeUpMachine {
  int init_result = 0;
  int cuda_version = 13'000;
  std::vector<GpuFacts> gpus{};
  int contexts = 0;
  int current = -1;
  std::string without{};  // a function that the library does not have
};
MadeUpMachine* machine = nullptr;

const GpuFacts& gpu_of(int device) {
  return machine->gpus.at(static_cast<size_t>(device - 10));  // handles are no numbers
}
int init(unsigned) {
  return machine->init_result;
}
int version(int* out) {
  *out = machine->cuda_version;
  return 0;
}
int count(int* out) {
  *out = static_cast<int>(machine->gpus.size());
  return 0;
}
int get(int* out, int number) {
  *out = number + 10;
  return 0;
}
int name(char* out, int size, int device) {
  std::snprintf(out, static_cast<size_t>(size), "%s", gpu_of(device).name.c_str());
  return 0;
}
int total(size_t* out, int device) {
  *out = static_cast<size_t>(gpu_of(device).total_bytes);
  return 0;
}
int attribute(int* out, int number, int device) {
  const GpuFacts& gpu = gpu_of(device);
  const std::map<int, int> known = {{16, gpu.multiprocessors}, {75, gpu.major}, {76, gpu.minor}};
  *out = known.at(number);
  return 0;
}
int retain(void** out, int device) {
  if (gpu_of(device).free_bytes < 0) {
    return 46;
  }
  ++machine->contexts;
  *out = reinterpret_cast<void*>(static_cast<intptr_t>(device));
  return 0;
}
int release(int) {
  --machine->contexts;
  return 0;
}
int set_current(void* context) {
  machine->current = static_cast<int>(reinterpret_cast<intptr_t>(context));
  return 0;
}
int memory(size_t* unused, size_t* all) {
  *unused = static_cast<size_t>(gpu_of(machine->current).free_bytes);
  *all = static_cast<size_t>(gpu_of(machine->current).total_bytes);
  return 0;
}
int error_text(int, const char** out) {
  *out = "unknown error";
  return 0;
}

void* made_up_symbol(const char* wanted) {
  static const std::map<std::string, void*> functions = {
      {"cuInit", reinterpret_cast<void*>(init)},
      {"cuDriverGetVersion", reinterpret_cast<void*>(version)},
      {"cuDeviceGetCount", reinterpret_cast<void*>(count)},
      {"cuDeviceGet", reinterpret_cast<void*>(get)},
      {"cuDeviceGetName", reinterpret_cast<void*>(name)},
      {"cuDeviceTotalMem_v2", reinterpret_cast<void*>(total)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(attribute)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain)},
      {"cuDevicePrimaryCtxRelease_v2", reinterpret_cast<void*>(release)},
      {"cuCtxSetCurrent", reinterpret_cast<void*>(set_current)},
      {"cuMemGetInfo_v2", reinterpret_cast<void*>(memory)},
      {"cuGetErrorString", reinterpret_cast<void*>(error_text)}};
  const auto found = functions.find(wanted);
  return found == functions.end() || machine->without == wanted ? nullptr : found->second;
}

const GpuFacts kHopper{.name = "Hopper",
                       .total_bytes = 140 * kOneGib,
                       .free_bytes = 139 * kOneGib,
                       .major = 9,
                       .minor = 0,
                       .multiprocessors = 132};

GpuFindings look(MadeUpMachine& made_up) {
  machine = &made_up;
  const GpuFindings found = look_at_gpus(made_up_symbol);
  EXPECT_EQ(made_up.contexts, 0) << "every context is given back";
  return found;
}

std::string all_words(const std::vector<CheckLine>& lines) {
  std::string out;
  for (const CheckLine& line : lines) {
    out += line.text + "\n";
  }
  return out;
}

Verdict worst(const std::vector<CheckLine>& lines) {
  Verdict out = Verdict::kOk;
  for (const CheckLine& line : lines) {
    out = std::max(out, line.verdict);
  }
  return out;
}

#define EXPECT_SAYS(lines, words) \
  EXPECT_NE(all_words(lines).find(words), std::string::npos) << all_words(lines)

TEST(GpuLookTest, ReadsWhatTheDriverSaysOfEveryGpu) {
  MadeUpMachine made_up{.gpus = {kHopper, kHopper}};
  made_up.gpus[1].name = "Other";
  made_up.gpus[1].free_bytes = 7 * kOneGib;
  made_up.gpus[1].minor = 3;
  const GpuFindings found = look(made_up);
  EXPECT_TRUE(found.has_driver);
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.cuda_version, 13'000);
  ASSERT_EQ(found.gpus.size(), 2U);
  EXPECT_EQ(found.gpus[0].name, "Hopper");
  EXPECT_EQ(found.gpus[0].total_bytes, 140 * kOneGib);
  EXPECT_EQ(found.gpus[0].free_bytes, 139 * kOneGib);
  EXPECT_EQ(found.gpus[0].major, 9);
  EXPECT_EQ(found.gpus[0].multiprocessors, 132);
  EXPECT_EQ(found.gpus[1].name, "Other");
  EXPECT_EQ(found.gpus[1].free_bytes, 7 * kOneGib);
  EXPECT_EQ(found.gpus[1].minor, 3);
}

TEST(GpuLookTest, AMachineWithoutADriverServesOnTheProcessor) {
  const GpuFindings found = look_at_gpus({});
  EXPECT_FALSE(found.has_driver);
  const auto lines = gpu_lines(found, {.built_with_cuda = true});
  EXPECT_EQ(worst(lines), Verdict::kOk);
  EXPECT_SAYS(lines, "driver is not there");
  EXPECT_EQ(worst(gpu_lines(found, {.device = "cuda"})), Verdict::kFail);
}

TEST(GpuLookTest, ADriverWithoutAGpuIsToldFromOneThatDoesNotWork) {
  MadeUpMachine none{.init_result = 100};
  GpuFindings found = look(none);
  EXPECT_TRUE(found.problem.empty());
  EXPECT_EQ(worst(gpu_lines(found, {})), Verdict::kOk);
  EXPECT_SAYS(gpu_lines(found, {}), "shows no GPU");
  MadeUpMachine broken{.init_result = 999, .gpus = {kHopper}};
  found = look(broken);
  EXPECT_EQ(found.problem, "cuInit gave error 999: unknown error");
  EXPECT_TRUE(found.gpus.empty());
  EXPECT_EQ(worst(gpu_lines(found, {})), Verdict::kWarn);
  EXPECT_SAYS(gpu_lines(found, {}), "--gpus all");
  EXPECT_EQ(worst(gpu_lines(found, {.device = "cuda:0"})), Verdict::kFail);
  MadeUpMachine old{.gpus = {kHopper}, .without = "cuDeviceTotalMem_v2"};
  found = look(old);
  EXPECT_EQ(found.problem, "the driver's library has no cuDeviceTotalMem_v2");
  EXPECT_TRUE(found.gpus.empty());
}

TEST(GpuLookTest, SaysWhatAGpuIsGoodForAndWhatIsInTheWay) {
  MadeUpMachine made_up{.gpus = {kHopper}};
  const GpuFindings good = look(made_up);
  const GpuWish cuda{.device = "cuda", .built_with_cuda = true};
  EXPECT_EQ(worst(gpu_lines(good, cuda)), Verdict::kOk);
  EXPECT_SAYS(gpu_lines(good, cuda), "cuda:0 Hopper, 140.0 GiB (139.0 free)");
  EXPECT_SAYS(gpu_lines(good, cuda), "the kernels run here");
  EXPECT_EQ(worst(gpu_lines(good, {})), Verdict::kWarn);
  EXPECT_SAYS(gpu_lines(good, {}), "built without CUDA");

  made_up.gpus[0].major = 8;
  EXPECT_EQ(worst(gpu_lines(look(made_up), cuda)), Verdict::kWarn);
  EXPECT_SAYS(gpu_lines(look(made_up), cuda), "right but slow");

  made_up.gpus[0] = kHopper;
  made_up.gpus[0].free_bytes = 100 * kOneGib;
  EXPECT_EQ(worst(gpu_lines(look(made_up), cuda)), Verdict::kWarn);
  EXPECT_SAYS(gpu_lines(look(made_up), cuda), "40.0 GiB are taken by other programs");

  made_up.gpus[0].free_bytes = -1;
  EXPECT_EQ(worst(gpu_lines(look(made_up), cuda)), Verdict::kFail);
  EXPECT_EQ(worst(gpu_lines(look(made_up), {.built_with_cuda = true})), Verdict::kWarn);

  made_up.gpus[0] = kHopper;
  made_up.cuda_version = 12'040;
  EXPECT_EQ(worst(gpu_lines(look(made_up), cuda)), Verdict::kFail);
  EXPECT_SAYS(gpu_lines(look(made_up), cuda), "CUDA 12.4 at most");
}

TEST(GpuLookTest, TheWishedGpuMustBeThereAndHoldTheWeights) {
  MadeUpMachine made_up{.gpus = {kHopper, kHopper}};
  made_up.gpus[1].free_bytes = 10 * kOneGib;
  const GpuFindings found = look(made_up);
  GpuWish wish{.device = "cuda:0", .built_with_cuda = true, .weight_bytes = 80 * kOneGib};
  EXPECT_NE(worst(gpu_lines(found, wish)), Verdict::kFail);
  wish.device = "cuda:1";
  EXPECT_EQ(worst(gpu_lines(found, wish)), Verdict::kFail);
  EXPECT_SAYS(gpu_lines(found, wish), "the weights need 80.0 GiB");
  wish.device = "cpu";
  EXPECT_NE(worst(gpu_lines(found, wish)), Verdict::kFail) << "the memory of GPUs is not needed";
  wish.device = "cuda:2";
  EXPECT_EQ(worst(gpu_lines(found, wish)), Verdict::kFail);
  EXPECT_SAYS(gpu_lines(found, wish), "--device cuda:2 is not there: 2 GPUs");
  for (const char* device : {"gpu", "cuda:", "cuda:-1", "cuda:1x", ""}) {
    wish.device = device;
    EXPECT_THROW(gpu_lines(found, wish), ConfigError) << device;
  }
}

TEST(GpuLookTest, LooksAtThisMachine) {
  const GpuFindings found = look_at_gpus(cuda_driver_symbols());
  for (const GpuFacts& gpu : found.gpus) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.total_bytes, kOneGib / 2);
    EXPECT_GT(gpu.major, 0);
    EXPECT_GT(gpu.multiprocessors, 0);
    EXPECT_LE(gpu.free_bytes, gpu.total_bytes);
  }
  EXPECT_FALSE(gpu_lines(found, {}).empty());
  std::printf("%s", all_words(gpu_lines(found, {})).c_str());
}

#undef EXPECT_SAYS

}  // namespace
}  // namespace baleen::apps
