#pragma once
// The forms of the expert step on Hopper, of the same bits. launch_experts chooses; tests and
// benchmarks compare.

#include "device/stream_handle.h"
#include "kernels/experts/experts.h"

namespace baleen::kernels::experts {

/// Any number of tokens: one block per multiprocessor walks a list of items (experts_sm90.cu).
void launch_persistent(const ExpertsParams& params, device::StreamHandle stream);

/// One token without shared expert: a cluster of blocks per slot (experts_solo_sm90.cu). Sizes that
/// its buffers hold, on a card that has room for all clusters at once.
bool solo_supported(const ExpertsParams& params);
void launch_solo(const ExpertsParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels::experts
