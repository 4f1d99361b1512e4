// Comparing floats as integers: order keys, and the candidates of a search for the largest value.
//
// Everything here is a maximum or a count of integers, so no result depends on the order in which
// threads or blocks get to it.
#pragma once

#include <cstdint>

#include "reduce.cuh"

namespace bytebound {

constexpr int kSearchThreads = 256;  // of a block that searches a part of a row

// key(a) < key(b) exactly where a < b; the two zeros have one key. Not for NaN. Every key is above
// 0 and below 0xffffffff.
__device__ __forceinline__ std::uint32_t order_key(float value) {
  const std::uint32_t bits = value == 0.0f ? 0u : __float_as_uint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float key_value(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

// A value and its index in one integer: the greater candidate has the higher value or, at equal
// values, the lower index. NaN is above all.
using Candidate = unsigned long long;
constexpr Candidate kNoCandidate = 0;
constexpr Candidate kNanCandidate = ~Candidate{0};

__device__ __forceinline__ Candidate candidate(float value, int index) {
  const Candidate packed = Candidate{order_key(value)} << 32 | ~static_cast<std::uint32_t>(index);
  return isnan(value) ? kNanCandidate : packed;
}

__device__ __forceinline__ Candidate greater(Candidate a, Candidate b) {
  return a > b ? a : b;
}

// Not for kNanCandidate and kNoCandidate.
__device__ __forceinline__ int candidate_index(Candidate packed) {
  return static_cast<int>(~static_cast<std::uint32_t>(packed));
}

__device__ __forceinline__ std::uint32_t candidate_key(Candidate packed) {
  return static_cast<std::uint32_t>(packed >> 32);
}

__device__ __forceinline__ Candidate warp_max(Candidate value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = greater(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Maximum over a block of kSearchThreads, known to every thread afterwards. `shared` may be used
// again after the block's next barrier.
__device__ __forceinline__ Candidate block_max(Candidate value,
                                               Candidate (&shared)[kSearchThreads / kWarp]) {
  value = warp_max(value);
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  const int i_lane = threadIdx.x % kWarp;
  return warp_max(i_lane < kSearchThreads / kWarp ? shared[i_lane] : kNoCandidate);
}

// Whether this block is the last of `num_blocks` to come here: it then sees what the others wrote
// before they came. The counter starts at 0 and is 0 again afterwards. Every thread calls it, and
// gets the same answer.
__device__ __forceinline__ bool is_last_block(unsigned* p_counter, unsigned num_blocks) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicInc(p_counter, num_blocks - 1) == num_blocks - 1;
  }
  __syncthreads();
  if (is_last) {
    __threadfence();
  }
  return is_last;
}

}  // namespace bytebound
