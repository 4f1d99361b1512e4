// Thread block clusters: blocks that run at the same time and reach each other's shared memory.
//
// A block may be addressed by another one only while it runs: between two barriers of the cluster,
// one after every block has started and one before any block ends. Arriving and waiting are apart,
// so that a barrier whose wait comes late costs nothing.
//
// PTX ISA, "barrier.cluster", "mapa" and "st" with .shared::cluster. Before sm_90 there are no
// clusters: every block is a cluster of one, and the barrier is the block's own.
#pragma once

#include <cstdint>

namespace bytebound {

// The number of this block within its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

// Every thread of every block arrives once per barrier, by this or the next function. What a thread
// has read and written before is done for those that come back from cluster_wait(); its writes to
// global memory are waited for too, so let large ones follow the call.
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

// Arrives for a barrier that orders no memory: it says only that this block has started.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

// Every thread calls it once after it arrived; returns when all threads of all blocks
// arrived.
__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}

// Writes to another block's shared memory, at the place that p_shared has in this block's.
__device__ __forceinline__ void store_to_block(float* p_shared, unsigned rank, float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto local = static_cast<std::uint32_t>(__cvta_generic_to_shared(p_shared));
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
#else
  *p_shared = value;
#endif
}

// Reads from another block's shared memory. It takes several times as long as a load of one's own:
// where the writer knows the readers, let it store instead.
__device__ __forceinline__ float load_from_block(const float* p_shared, unsigned rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto local = static_cast<std::uint32_t>(__cvta_generic_to_shared(p_shared));
  std::uint32_t remote;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
#else
  return *p_shared;
#endif
}

}  // namespace bytebound
