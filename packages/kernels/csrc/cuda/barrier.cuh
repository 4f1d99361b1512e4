// Barriers in shared memory, and copies of the bulk engine that arrive at one. sm_90 and later.
// PTX ISA, "mbarrier" and "cp.async.bulk".
#pragma once

#include <cstdint>

#include "async_copy.cuh"

namespace bytebound {

// `count` arrivals complete a phase.
__device__ __forceinline__ void open_barrier(std::uint64_t* p_barrier, unsigned count) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(p_barrier)),
               "r"(count)
               : "memory");
#endif
}

// After open_barrier, by the same thread: the copy engine may arrive.
__device__ __forceinline__ void publish_barriers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

__device__ __forceinline__ void arrive_at(std::uint64_t* p_barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(p_barrier))
               : "memory");
#endif
}

// Returns when the phase of that parity is complete.
__device__ __forceinline__ void wait_for_phase(std::uint64_t* p_barrier, unsigned parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(p_barrier)),
      "r"(parity)
      : "memory");
#endif
}

// Whether the phase of that parity is complete.
__device__ __forceinline__ bool is_complete(std::uint64_t* p_barrier, unsigned parity) {
  std::uint32_t done = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(p_barrier)), "r"(parity)
      : "memory");
#endif
  return done != 0;
}

// Bytes that are read once give way to others in the L2.
__device__ __forceinline__ std::uint64_t read_once_policy() {
  std::uint64_t policy = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// One thread begins a copy to shared memory, which completes the barrier's phase. Addresses and
// number are multiples of 16.
__device__ __forceinline__ void copy_bulk(void* p_shared,
                                          const void* p_from,
                                          unsigned num_bytes,
                                          std::uint64_t* p_barrier,
                                          std::uint64_t policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(p_barrier)),
      "r"(num_bytes)
      : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(p_shared)),
      "l"(p_from), "r"(num_bytes), "r"(shared_address(p_barrier)), "l"(policy)
      : "memory");
#endif
}

// A barrier of the block's own kind for some of its warps; id 1 to 15.
template <int kId, int kThreads>
__device__ __forceinline__ void sync_threads_of() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

}  // namespace bytebound
