// Accesses to global memory that blocks of a running kernel see of each other: at gpu scope, past
// the L1 cache. A relaxed access orders nothing but itself; its bytes arrive together or not at
// all. PTX ISA, "ld", "st" and "Memory Consistency Model".
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace bytebound {

__device__ __forceinline__ uint4 load_relaxed_16(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

__device__ __forceinline__ uint32_t load_relaxed_4(const void* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ uint16_t load_relaxed_2(const void* p) {
  uint16_t v;
  asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void store_relaxed(float* p, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(p), "f"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed(__half* p, __half value) {
  asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(p), "h"(__half_as_ushort(value))
               : "memory");
}

__device__ __forceinline__ void store_relaxed_4(void* p, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

__device__ __forceinline__ unsigned long long load_relaxed_8(const void* p) {
  unsigned long long v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void store_relaxed(float2* p, float2 value) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1,%2};" ::"l"(p), "f"(value.x), "f"(value.y)
               : "memory");
}

__device__ __forceinline__ void store_relaxed_8(void* p, unsigned long long value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed_16(void* p, const uint4& v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// What this thread read afterwards is at least as new as what the writer of the value had written
// before it.
__device__ __forceinline__ int load_acquire(const int* p) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

// Zero, which whoever acquires it sees after everything that this thread wrote or has seen.
__device__ __forceinline__ void store_release_zero(int* p) {
  asm volatile("st.release.gpu.global.s32 [%0], 0;" ::"l"(p) : "memory");
}

// Whoever acquires the sum sees everything that this thread wrote or has seen.
__device__ __forceinline__ void add_release(int* p, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

}  // namespace bytebound
