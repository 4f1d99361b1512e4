// Results that blocks of a running kernel hand each other through the L2 cache.
//
// The memory they are written to has every bit set beforehand, and no arithmetic yields such a word
// or half word (its NaN is 0x7fffffff or 0x7fff). So a value is its own flag: it has arrived when
// the bits are no longer all set, one trip after it was written, with no fence and no counter.
// PTX ISA, "Memory Consistency Model": each access here is relaxed at gpu scope, and what depends
// on a value is only read after it.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "gpu_scope.cuh"

namespace bytebound {

// Whether one of two halves has all bits set. (The test for a zero byte, for half words.)
__device__ __forceinline__ bool has_absent_half(uint32_t word) {
  return ((~word - 0x00010001u) & word & 0x80008000u) != 0;
}

__device__ __forceinline__ bool has_absent_half(uint2 v) {
  const uint32_t any = ((~v.x - 0x00010001u) & v.x) | ((~v.y - 0x00010001u) & v.y);
  return (any & 0x80008000u) != 0;
}

__device__ __forceinline__ bool has_absent_half(const uint4& v) {
  return has_absent_half(make_uint2(v.x, v.y)) || has_absent_half(make_uint2(v.z, v.w));
}

__device__ __forceinline__ bool has_absent_word(const uint4& v) {
  return v.x == ~0u || v.y == ~0u || v.z == ~0u || v.w == ~0u;
}

// Two halves, when both have arrived.
__device__ __forceinline__ uint32_t receive_halves(const void* p) {
  uint32_t v;
  do {
    v = load_relaxed_4(p);
  } while (has_absent_half(v));
  return v;
}

// One half.
__device__ __forceinline__ __half receive_half(const void* p) {
  uint16_t v;
  do {
    v = load_relaxed_2(p);
  } while (v == 0xffffu);
  return __ushort_as_half(v);
}

}  // namespace bytebound
