// Thread block clusters: blocks that run at the same time and send numbers to each other.
//
// A block may be addressed by another one only while it runs. It has started once every block has
// passed the cluster's barrier, and it goes on until its mailbox has received all that is sent to
// it. Sending costs the sender nothing to wait for, unlike a second barrier of the cluster, which
// would wait for everything the block has written to global memory as well.
//
// PTX ISA, "barrier.cluster", "mapa", "st.async" and "mbarrier". Before sm_90 there are no
// clusters: every block is a cluster of one, and it sends to itself.
#pragma once

#include <cstdint>

#include "async_copy.cuh"

namespace bytebound {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasClusters = false;
#else
constexpr bool kHasClusters = true;
#endif

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

// Every thread of every block calls it once, before it writes to global memory, and the thread that
// opens the mailbox after that: when all have, every block may be sent to, and what the threads had
// read until then may be written.
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

// Every thread calls it once after it arrived; returns when all threads of all blocks have. Of a
// block that is a cluster of its own a barrier in between says the same.
__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Lies in shared memory, at the same place in every block.
struct Mailbox {
  std::uint64_t barrier;
};

// One thread calls it before it arrives: num_bytes will be sent to this block in all.
__device__ __forceinline__ void open_mailbox(Mailbox* p_mailbox, std::uint32_t num_bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const std::uint32_t local = shared_address(p_mailbox);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(local) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(local), "r"(num_bytes)
               : "memory");
#endif
}

// Writes to another block's shared memory, at the place that p_shared has in this block's, and
// counts it in that block's mailbox. A mailbox counts one message after the other: send few.
__device__ __forceinline__ void send_to_block(float4* p_shared,
                                              const float4& value,
                                              Mailbox* p_mailbox,
                                              unsigned rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  std::uint32_t remote;
  std::uint32_t remote_mailbox;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote)
               : "r"(shared_address(p_shared)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote_mailbox)
               : "r"(shared_address(p_mailbox)), "r"(rank));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::
          "r"(remote),
      "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)), "r"(__float_as_uint(value.z)),
      "r"(__float_as_uint(value.w)), "r"(remote_mailbox)
      : "memory");
#else
  *p_shared = value;
#endif
}

// Every thread calls it, once; returns when everything has been received and can be read.
__device__ __forceinline__ void wait_for_mail(Mailbox* p_mailbox) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const std::uint32_t local = shared_address(p_mailbox);
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(local)
        : "memory");
  }
#else
  __syncthreads();
#endif
}

}  // namespace bytebound
