#pragma once
// What the kernels of experts_prompt work on. A group is up to 4 units of one expert, next
// to each other in the list. Activations lie as the tensor cores read them without
// swizzle: per group [block of 128 inputs][unit][16 bytes of inputs][row][16 bytes], scales [block]
// [unit][row], so that one copy fetches any run of blocks of a group.

#include <cstdint>

#include "kernels/experts/experts.h"

namespace baleen::kernels::experts_prompt {

struct alignas(16) Group {
  int32_t expert = 0;
  int32_t first_unit = 0;
  int32_t units = 0;
  int32_t count = 0;  // entries
  int32_t begin = 0;  // of the first entry in list order
  int32_t unused[3] = {};
};

/// Device view of a launch.
struct Task {
  ExpertsParams params;
  int32_t max_units = 0;
  int32_t* num_groups = nullptr;
  Group* groups = nullptr;
  uint8_t* input_codes = nullptr;
  uint16_t* input_scales = nullptr;
  uint16_t* hidden_rows = nullptr;
  uint8_t* hidden_codes = nullptr;
  uint16_t* hidden_scales = nullptr;
  void* slot_rows = nullptr;
};

inline constexpr int kUnitBlockBytes = 8 * 128;  // e4m3 codes of a unit's block of inputs

void launch_inputs(const Task& task, device::StreamHandle stream);   // and the groups
void launch_hidden(const Task& task, device::StreamHandle stream);   // hidden rows to e4m3
void launch_combine(const Task& task, device::StreamHandle stream);  // slots to y

}  // namespace baleen::kernels::experts_prompt
