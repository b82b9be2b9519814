#pragma once
// Programmatic dependent launch: a kernel launched with `.programmatic` may start while its
// predecessor still runs. Before `wait_for_predecessor` it may only read what the predecessor does
// not write (weights, constants). Both are no-ops in a plain launch.

namespace baleen::kernels::ptx {

/// griddepcontrol.wait: returns when the predecessor has ended and its writes are visible.
__device__ __forceinline__ void wait_for_predecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// griddepcontrol.launch_dependents: the successor may be scheduled once every block said so or
/// ended.
__device__ __forceinline__ void release_successor() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace baleen::kernels::ptx
