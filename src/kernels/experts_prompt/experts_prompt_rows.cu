// The launches of experts_prompt that move rows: groups are found and tokens brought to them,
// hidden rows become e4m3 in the same form, slots are summed.

#include <algorithm>
#include <cstdint>

#include "device/launch.h"
#include "kernels/experts/quantise_eight.cuh"
#include "kernels/experts_prompt/experts_prompt.h"
#include "kernels/experts_prompt/prompt_task.h"
#include "kernels/ptx/convert.cuh"
#include "numerics/block_scale.h"

namespace baleen::kernels::experts_prompt {
namespace {

constexpr int kRowThreads = 256;
constexpr int kListUnits = 2048;  // most units of a list: 1,024 tokens of 8 slots, 512 experts
static_assert(kListUnits >= kMaxListExperts + kMaxListTokens);
constexpr int kScanThreads = kListUnits / 2;

/// Place of a unit's first block: the group's first unit and number of units.
struct UnitPlace {
  int32_t first_unit;
  int32_t units;
  /// Number of the unit-block `block` of unit `unit` among all unit-blocks.
  __device__ __forceinline__ int64_t at(int32_t unit, int32_t block, int32_t blocks) const {
    return static_cast<int64_t>(first_unit) * blocks + static_cast<int64_t>(block) * units + unit -
           first_unit;
  }
};

/// Found by a whole warp: units of an expert are neighbours, groups are cut from its first one.
__device__ __forceinline__ UnitPlace place_of(const ExpertsParams& params,
                                              int32_t num_units,
                                              int32_t unit,
                                              int32_t expert) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ExpertUnit* units = params.lists.units;
  int32_t head = unit;
  for (;;) {
    const int32_t before = head - 1 - lane;
    const uint32_t same =
        __ballot_sync(0xFFFFFFFFU, before >= 0 && __ldcg(&units[before].expert) == expert);
    const int run = same == 0xFFFFFFFFU ? 32 : __ffs(static_cast<int>(~same)) - 1;
    head -= run;
    if (run < 32) {
      break;
    }
  }
  constexpr int kMost = kPromptGroupUnits;
  UnitPlace place;
  place.first_unit = head + (unit - head) / kMost * kMost;
  const int32_t next = place.first_unit + lane;
  place.units = __popc(__ballot_sync(
      0xFFFFFFFFU, lane < kMost && next < num_units && __ldcg(&units[next].expert) == expert));
  return place;
}

/// One block lists the groups in the order of their units.
__global__ void __launch_bounds__(kScanThreads) groups_kernel(const Task task) {
  __shared__ int32_t scan[2][kListUnits];
  const ExpertsParams& params = task.params;
  const int32_t num_units = __ldcg(params.lists.num_units);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto expert_of = [&](int32_t u) { return __ldcg(&params.lists.units[u].expert); };
  // Inclusive scans over all units, two of them per thread.
  const auto run_scan = [&](auto combine) {
    int from = 0;
    for (int distance = 1; distance < kListUnits; distance *= 2) {
      __syncthreads();
      for (int32_t u = thread; u < kListUnits; u += kScanThreads) {
        const int32_t value = scan[from][u];
        scan[1 - from][u] = u >= distance ? combine(scan[from][u - distance], value) : value;
      }
      from = 1 - from;
    }
    __syncthreads();
    return from;
  };
  for (int32_t u = thread; u < kListUnits; u += kScanThreads) {
    scan[0][u] = u < num_units && (u == 0 || expert_of(u) != expert_of(u - 1)) ? u : 0;
  }
  int at = run_scan([](int32_t a, int32_t b) { return max(a, b); });  // first unit of the expert
  bool starts[2] = {};
  for (int k = 0; k < 2; ++k) {
    const int32_t u = thread + k * kScanThreads;
    starts[k] = u < num_units && (u - scan[at][u]) % kPromptGroupUnits == 0;
  }
  __syncthreads();
  for (int k = 0; k < 2; ++k) {
    scan[0][thread + k * kScanThreads] = starts[k] ? 1 : 0;
  }
  at = run_scan([](int32_t a, int32_t b) { return a + b; });
  for (int k = 0; k < 2; ++k) {
    const int32_t u = thread + k * kScanThreads;
    if (!starts[k]) {
      continue;
    }
    Group group;
    group.expert = expert_of(u);
    group.first_unit = u;
    while (group.units < kPromptGroupUnits && u + group.units < num_units &&
           expert_of(u + group.units) == group.expert) {
      group.count += __ldcg(&params.lists.units[u + group.units].count);
      ++group.units;
    }
    group.begin = __ldcg(&params.lists.units[u].begin);
    task.groups[scan[at][u] - 1] = group;
  }
  if (thread == 0) {
    *task.num_groups = num_units > 0 ? scan[at][kListUnits - 1] : 0;
  }
}

/// A block per unit: its tokens' codes and scales. Rows behind the last entry stay as they are;
/// what is computed from them nobody looks at.
__global__ void __launch_bounds__(kRowThreads) inputs_kernel(const Task task) {
  __shared__ UnitPlace shared_place;
  const ExpertsParams& params = task.params;
  const auto unit = static_cast<int32_t>(blockIdx.x);
  const int32_t num_units = __ldcg(params.lists.num_units);
  if (unit >= num_units) {
    return;
  }
  const ExpertUnit& own = params.lists.units[unit];
  if (threadIdx.x < 32) {
    const UnitPlace found = place_of(params, num_units, unit, __ldcg(&own.expert));
    if (threadIdx.x == 0) {
      shared_place = found;
    }
  }
  __syncthreads();
  const UnitPlace place = shared_place;
  const int32_t count = __ldcg(&own.count);
  const int32_t blocks = params.hidden / 128;
  const int32_t chunks = params.hidden / 16;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  // Row fastest: eight neighbours write 128 bytes in a row.
  const int32_t row = thread % 8;
  if (row >= count) {
    return;
  }
  const int64_t token = __ldcg(&own.entries[row]) / params.slots;
  const auto* source = reinterpret_cast<const uint4*>(params.x_codes + token * params.hidden);
  for (int32_t chunk = thread / 8; chunk < chunks; chunk += kRowThreads / 8) {
    const int64_t to =
        place.at(unit, chunk / 8, blocks) * kUnitBlockBytes + chunk % 8 * 128 + row * 16;
    *reinterpret_cast<uint4*>(task.input_codes + to) = __ldg(source + chunk);
  }
  for (int32_t block = thread / 8; block < blocks; block += kRowThreads / 8) {
    const float scale = numerics::ue8m0_to_float(__ldg(params.x_scales + token * blocks + block));
    task.input_scales[place.at(unit, block, blocks) * 8 + row] =
        static_cast<uint16_t>(numerics::float_bits(scale) >> 16);
  }
}

/// A block per unit: its hidden rows as e4m3 with a scale per 128 channels, 16 lanes a row's block.
__global__ void __launch_bounds__(kRowThreads) hidden_kernel(const Task task) {
  __shared__ UnitPlace shared_place;
  const ExpertsParams& params = task.params;
  const auto unit = static_cast<int32_t>(blockIdx.x);
  const int32_t num_units = __ldcg(params.lists.num_units);
  if (unit >= num_units) {
    return;
  }
  const ExpertUnit& own = params.lists.units[unit];
  if (threadIdx.x < 32) {
    const UnitPlace found = place_of(params, num_units, unit, __ldcg(&own.expert));
    if (threadIdx.x == 0) {
      shared_place = found;
    }
  }
  __syncthreads();
  const UnitPlace place = shared_place;
  const int32_t count = __ldcg(&own.count);
  const int32_t begin = __ldcg(&own.begin);
  const int32_t blocks = params.width / 128;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t part = thread % 16;  // eight channels
  for (int32_t pair = thread / 16; pair < count * blocks; pair += kRowThreads / 16) {
    const int32_t row = pair / blocks;
    const int32_t block = pair - row * blocks;
    const uint4 packed = __ldcg(reinterpret_cast<const uint4*>(
        task.hidden_rows + static_cast<int64_t>(begin + row) * params.width + block * 128 +
        part * 8));
    const experts::QuantisedEight eight = experts::quantise_eight(packed, thread);
    const int64_t to = place.at(unit, block, blocks);
    *reinterpret_cast<uint2*>(task.hidden_codes + to * kUnitBlockBytes + part / 2 * 128 + row * 16 +
                              part % 2 * 8) = eight.codes;
    if (part == 0) {
      task.hidden_scales[to * 8 + row] =
          static_cast<uint16_t>(numerics::float_bits(eight.scale) >> 16);
    }
  }
}

/// A thread per pair of columns of a token.
__global__ void __launch_bounds__(kRowThreads) combine_kernel(const Task task) {
  const ExpertsParams& params = task.params;
  const int32_t pairs = params.hidden / 2;
  const int64_t token = blockIdx.y;
  const auto pair = static_cast<int32_t>(blockIdx.x * kRowThreads + threadIdx.x);
  if (pair >= pairs) {
    return;
  }
  const int64_t first = token * params.slots * params.hidden + 2 * pair;
  const int64_t to = token * params.hidden + 2 * pair;
  float left = 0.0F;
  float right = 0.0F;
  if (params.round == MoeRound::kPerExpert) {
    const auto* rows = static_cast<const uint16_t*>(task.slot_rows) + first;
#pragma unroll 4
    for (int s = 0; s < params.slots; ++s) {
      const uint32_t value =
          __ldcg(reinterpret_cast<const uint32_t*>(rows + static_cast<int64_t>(s) * params.hidden));
      left += ptx::low_bf16(value);
      right += ptx::high_bf16(value);
    }
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(params.y) + to) =
        ptx::pack_bf16(left, right);
  } else {
    const auto* rows = static_cast<const float*>(task.slot_rows) + first;
    for (int s = 0; s < params.slots; ++s) {
      const float2 value =
          __ldcg(reinterpret_cast<const float2*>(rows + static_cast<int64_t>(s) * params.hidden));
      left += value.x;
      right += value.y;
    }
    *reinterpret_cast<float2*>(static_cast<float*>(params.y) + to) = make_float2(left, right);
  }
}

device::LaunchShape per_unit(const Task& task) {
  return {.grid = dim3(static_cast<unsigned>(task.max_units)), .block = dim3(kRowThreads)};
}

}  // namespace

void launch_inputs(const Task& task, device::StreamHandle stream) {
  device::launch(stream, {.grid = dim3(1), .block = dim3(kScanThreads)}, groups_kernel, task);
  device::launch(stream, per_unit(task), inputs_kernel, task);
}

void launch_hidden(const Task& task, device::StreamHandle stream) {
  device::launch(stream, per_unit(task), hidden_kernel, task);
}

void launch_combine(const Task& task, device::StreamHandle stream) {
  const int32_t pairs = task.params.hidden / 2;
  device::launch(stream,
                 {.grid = dim3(static_cast<unsigned>((pairs + kRowThreads - 1) / kRowThreads),
                               static_cast<unsigned>(task.params.num_tokens)),
                  .block = dim3(kRowThreads)},
                 combine_kernel,
                 task);
}

}  // namespace baleen::kernels::experts_prompt
