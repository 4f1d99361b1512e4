// Copies from global to shared memory that run while the thread goes on: cp.async, sm_80 and later.
// PTX ISA, "cp.async".
#pragma once

#include <cstdint>

namespace bytebound {

__device__ __forceinline__ uint32_t shared_address(const void* p_shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p_shared));
}

// Copies 16 bytes, past the L1. Both addresses are 16-byte aligned. Only the first num_bytes, a
// multiple of 4, are read; zeros are written in place of the others.
__device__ __forceinline__ void async_copy_16(uint32_t to_shared,
                                              const void* p_from,
                                              int num_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(p_from),
               "r"(num_bytes)
               : "memory");
}

__device__ __forceinline__ void async_copy_16(uint32_t to_shared, const void* p_from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(p_from)
               : "memory");
}

// Copies 4 bytes; both addresses are multiples of 4.
__device__ __forceinline__ void async_copy_4(uint32_t to_shared, const void* p_from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(p_from) : "memory");
}

// Returns when every copy that this thread has begun is complete. The copies of other threads are
// visible after a barrier that follows.
__device__ __forceinline__ void async_copy_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Ends a group of copies; a group without any is complete at once.
__device__ __forceinline__ void async_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Returns when all groups of this thread but the last kGroups are complete.
template <int kGroups>
__device__ __forceinline__ void async_copy_wait_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Asks the L2 for bytes that will be read soon: a hint, which changes no result. The address and
// the number are multiples of 16. Before sm_90 it does nothing. PTX ISA, "cp.async.bulk.prefetch".
__device__ __forceinline__ void prefetch_bytes(const void* p_from, int num_bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p_from), "r"(num_bytes)
               : "memory");
#endif
}

}  // namespace bytebound
