// Special registers that CUDA C++ has no name for, or whose name the compiler knows too much about.
// PTX ISA, "Special Registers".
#pragma once

#include <cstdint>

namespace bytebound {

// Nanoseconds; one clock for all multiprocessors.
__device__ __forceinline__ std::int64_t global_time() {
  std::int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Not threadIdx.x: what is derived from that is kept in registers through a whole kernel, and what
// is derived from this is worked out again.
__device__ __forceinline__ int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// Likewise.
__device__ __forceinline__ int block_index() {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

__device__ __forceinline__ int num_blocks() {
  int count;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(count));
  return count;
}

}  // namespace bytebound
