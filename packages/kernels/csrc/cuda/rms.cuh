// RMSNorm of a row by one block, for every kernel that normalises: one arithmetic, one order.
//
//   chunk (8 elements)   0    1    2   ...  P-1 |  P   P+1  ...      P = rms_threads(D)
//   thread               0    1    2   ...  P-1 |  0    1   ...
//
// A thread adds the squares of its chunks in ascending order, then the block adds its threads in a
// fixed tree. P depends on D alone.
#pragma once

#include <cstdint>

#include "chunk.cuh"
#include "reduce.cuh"

namespace bytebound {

// Written as fmaf so that the compiler has no choice of rounding to make.
__device__ __forceinline__ float add_squares(float sum, const float (&b_x)[kChunk]) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    sum = fmaf(b_x[j], b_x[j], sum);
  }
  return sum;
}

// Correctly rounded, so the same on every architecture; rsqrtf is not.
__device__ __forceinline__ float inverse_rms(float sum_of_squares, int d, float eps) {
  return __frsqrt_rn(sum_of_squares / static_cast<float>(d) + eps);
}

__device__ __forceinline__ void normalise(float (&b_x)[kChunk],
                                          const float (&b_weight)[kChunk],
                                          float inverse_rms) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b_x[j] = (b_x[j] * inverse_rms) * (1.0f + b_weight[j]);
  }
}

// Enough threads for one chunk each or, in a longer row, for equally many chunks each.
inline int rms_threads(std::int64_t d) {
  const std::int64_t chunks = (d + kChunk - 1) / kChunk;
  const std::int64_t rounds = (chunks + kMaxBlockThreads - 1) / kMaxBlockThreads;
  const std::int64_t threads = (chunks + rounds - 1) / rounds;
  return static_cast<int>((threads + kWarp - 1) / kWarp * kWarp);
}

}  // namespace bytebound
