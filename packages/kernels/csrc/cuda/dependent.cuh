// Programmatic dependent launch: a kernel starts while the one before it still runs.
//
// Two rules make it safe. A kernel that was launched with LaunchOptions::overlap_previous calls
// wait_for_previous_kernel() before it reads anything that an earlier kernel writes, and before it
// writes anything at all; only constant data, such as weights, may be loaded ahead of it. And every
// kernel of the chain calls it in every thread, on every path: the wait covers only the kernel that
// comes right before, so what lies further back is covered because that one waited too.
//
// PTX ISA, "griddepcontrol". Before sm_90 both functions do nothing and launches never overlap.
#pragma once

namespace bytebound {

// Returns when the previous kernel of the stream has ended and its writes are visible.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream start as soon as every block has called this or has ended. It
// says nothing about results: call it as early as the next kernel's blocks may take up room.
__device__ __forceinline__ void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace bytebound
