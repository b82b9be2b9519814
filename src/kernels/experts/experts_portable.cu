// The expert step for any GPU: one thread per output value, three kernels, FP32 sums.
#include <cmath>

#include "base/check.h"
#include "device/launch.h"
#include "kernels/experts/expert_tiles.h"
#include "kernels/experts/experts.h"
#include "numerics/bfloat16.h"
#include "numerics/block_scale.h"

namespace baleen::kernels {
namespace {

/// The weight of (tile row, input) in packed form.
__device__ float packed_weight(const std::byte* block, int row, int input, bool fp8) {
  const int warp = row / 16;
  const int upper = row % 16 / 8;
  const int instruction = input / 32;
  const int quad = input % 16 / 4;
  const int second = input % 32 / 16;  // which register of the row
  const int thread = 32 * warp + 4 * (row % 8) + quad;
  const uint32_t exponents = *reinterpret_cast<const uint32_t*>(block + (fp8 ? 8192 : 4096) +
                                                                word_place(warp, row % 8, upper));
  if (fp8) {
    const std::byte* place =
        block + lane_place(instruction, thread) + (2 * second + upper) * 4 + input % 4;
    return numerics::e4m3_to_float(static_cast<uint8_t>(*place)) * block_scale(exponents);
  }
  const uint32_t word = *reinterpret_cast<const uint32_t*>(
      block + lane_place(instruction / 2, thread) + instruction % 2 * 8 + upper * 4);
  uint32_t registers[2];
  expand_word(word, registers[0], registers[1]);
  return numerics::e4m3_to_float(
             static_cast<uint8_t>((registers[second] >> (8 * (input % 4))) & 0xFFU)) *
         group_scale(exponents, instruction);
}

/// Product of packed row `row` with a vector given per block: values(block, input) and its scale.
template <class Values, class Scale>
__device__ float packed_dot(
    const std::byte* tile, int row, int blocks, bool fp8, Values&& values, Scale&& scale) {
  float sum = 0.0F;
  for (int b = 0; b < blocks; ++b) {
    const std::byte* block =
        tile + static_cast<int64_t>(b) * (fp8 ? kFp8BlockBytes : kFp4BlockBytes);
    float part = 0.0F;
    for (int input = 0; input < kExpertBlockInputs; ++input) {
      part += packed_weight(block, row, input, fp8) * values(b, input);
    }
    sum += part * scale(b);
  }
  return sum;
}

__device__ const std::byte* tile_of(
    const std::byte* base, int64_t expert, int64_t rows, int64_t inputs, int64_t tile, bool fp8) {
  const int64_t tile_bytes = inputs / 128 * (fp8 ? kFp8BlockBytes : kFp4BlockBytes);
  return base + (fp8 ? 0 : expert * (rows / 64) * tile_bytes) + tile * tile_bytes;
}

__global__ void up_kernel(const ExpertsParams params, uint16_t* hidden_rows) {
  for (int u = static_cast<int>(blockIdx.y); u < *params.lists.num_units;
       u += static_cast<int>(gridDim.y)) {
    const ExpertUnit& unit = params.lists.units[u];
    const bool fp8 = unit.expert == params.num_experts;
    const int blocks = params.hidden / 128;
    const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    for (int i = 0; i < unit.count && channel < params.width; ++i) {
      const int token = unit.entries[i] / params.slots;
      const uint8_t* codes = params.x_codes + static_cast<int64_t>(token) * params.hidden;
      const uint8_t* scales = params.x_scales + static_cast<int64_t>(token) * blocks;
      const std::byte* tile = tile_of(fp8 ? params.shared_up : params.up,
                                      unit.expert,
                                      2 * params.width,
                                      params.hidden,
                                      channel / 32,
                                      fp8);
      const int row = channel % 32 / 8 * 16 + channel % 8;
      const auto values = [&](int b, int k) { return numerics::e4m3_to_float(codes[b * 128 + k]); };
      const auto scale = [&](int b) { return numerics::ue8m0_to_float(scales[b]); };
      const float gate = numerics::round_to_bf16(packed_dot(tile, row, blocks, fp8, values, scale));
      const float up =
          numerics::round_to_bf16(packed_dot(tile, row + 8, blocks, fp8, values, scale));
      const float limit = fp8 ? params.shared_limit : params.limit;
      const float g = gate > limit ? limit : gate;
      const float v = up > limit ? limit : (up < -limit ? -limit : up);
      const float h = g / (1.0F + expf(-g)) * v * unit.weights[i];
      hidden_rows[static_cast<int64_t>(unit.begin + i) * params.width + channel] =
          numerics::bf16_from_float(h);
    }
  }
}

__global__ void down_kernel(const ExpertsParams params,
                            const uint16_t* hidden_rows,
                            void* slot_rows) {
  for (int u = static_cast<int>(blockIdx.y); u < *params.lists.num_units;
       u += static_cast<int>(gridDim.y)) {
    const ExpertUnit& unit = params.lists.units[u];
    const bool fp8 = unit.expert == params.num_experts;
    const int blocks = params.width / 128;
    const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    for (int i = 0; i < unit.count && row < params.hidden; ++i) {
      const uint16_t* hidden = hidden_rows + static_cast<int64_t>(unit.begin + i) * params.width;
      const auto scale = [&](int b) {
        float largest = 0.0F;
        for (int k = 0; k < 128; ++k) {
          largest = fmaxf(largest, fabsf(numerics::bf16_to_float(hidden[b * 128 + k])));
        }
        return numerics::q8_scale(largest);
      };
      float block_scale = 0.0F;
      const auto values = [&](int b, int k) {
        if (k == 0) {
          block_scale = scale(b);
        }
        return numerics::e4m3_to_float(
            numerics::e4m3_from_float(numerics::bf16_to_float(hidden[b * 128 + k]) / block_scale));
      };
      const std::byte* tile = tile_of(fp8 ? params.shared_down : params.down,
                                      unit.expert,
                                      params.hidden,
                                      params.width,
                                      row / 64,
                                      fp8);
      const float sum = packed_dot(tile, row % 64, blocks, fp8, values, scale);
      const int64_t at = static_cast<int64_t>(unit.entries[i]) * params.hidden + row;
      if (params.round == MoeRound::kPerExpert) {
        static_cast<uint16_t*>(slot_rows)[at] = numerics::bf16_from_float(sum);
      } else {
        static_cast<float*>(slot_rows)[at] = sum;
      }
    }
  }
}

__global__ void combine_kernel(const ExpertsParams params, const void* slot_rows) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int64_t token = blockIdx.y;
  if (row >= params.hidden) {
    return;
  }
  float sum = 0.0F;
  for (int s = 0; s < params.slots; ++s) {
    const int64_t at = (token * params.slots + s) * params.hidden + row;
    sum += params.round == MoeRound::kPerExpert
               ? numerics::bf16_to_float(static_cast<const uint16_t*>(slot_rows)[at])
               : static_cast<const float*>(slot_rows)[at];
  }
  const int64_t to = token * params.hidden + row;
  if (params.round == MoeRound::kPerExpert) {
    static_cast<uint16_t*>(params.y)[to] = numerics::bf16_from_float(sum);
  } else {
    static_cast<float*>(params.y)[to] = sum;
  }
}

}  // namespace

void launch_experts_portable(const ExpertsParams& params, device::StreamHandle stream) {
  BALEEN_CHECK(experts_supported(params),
               "tokens={} hidden={} width={}",
               params.num_tokens,
               params.hidden,
               params.width);
  if (params.num_tokens == 0) {
    return;
  }
  const ExpertsWorkspace place = experts_workspace(params);
  auto* base = static_cast<std::byte*>(params.workspace);
  auto* hidden_rows = reinterpret_cast<uint16_t*>(base + place.hidden_rows);
  void* slot_rows = base + place.slot_rows;
  const auto blocks = [](int32_t values) { return static_cast<unsigned>((values + 127) / 128); };
  constexpr unsigned kUnitRows = 64;
  device::launch(stream,
                 {.grid = dim3(blocks(params.width), kUnitRows), .block = dim3(128)},
                 up_kernel,
                 params,
                 hidden_rows);
  device::launch(stream,
                 {.grid = dim3(blocks(params.hidden), kUnitRows), .block = dim3(128)},
                 down_kernel,
                 params,
                 static_cast<const uint16_t*>(hidden_rows),
                 slot_rows);
  device::launch(stream,
                 {.grid = dim3(blocks(params.hidden), static_cast<unsigned>(params.num_tokens)),
                  .block = dim3(128)},
                 combine_kernel,
                 params,
                 static_cast<const void*>(slot_rows));
}

}  // namespace baleen::kernels
