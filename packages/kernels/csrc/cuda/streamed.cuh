// Reads of weights, which are read once: they need no place in the L1 cache. Constant memory only,
// but for prefetch_to_l2(), which is a hint and reads nothing.
#pragma once

#include <cstdint>

namespace bytebound {

// When a lane takes 16 adjacent bytes; the address is a multiple of 16. (PTX ISA, "ld.global.nc")
__device__ __forceinline__ uint4 load_streamed(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// When a lane takes 4 bytes.
__device__ __forceinline__ uint32_t load_streamed_word(const void* p) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

// When memory that an earlier kernel may still write will be read after the wait for it.
__device__ __forceinline__ void prefetch_to_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

}  // namespace bytebound
