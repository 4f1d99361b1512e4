// Sums over a warp and over a block in one fixed order, so that equal inputs give equal bits.
#pragma once

namespace bytebound {

constexpr int kWarp = 32;  // threads
constexpr int kMaxBlockThreads = 1024;
constexpr unsigned kAllLanes = 0xffffffffu;

// Every lane gets the same bits: at each step both partners add the same two numbers.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// The largest over the warp, for every lane.
__device__ __forceinline__ unsigned warp_max(unsigned value) {
  return __reduce_max_sync(kAllLanes, value);
}

// Several sums over the warp at once, each with the bits of warp_sum(). Lane l gets the sum of
// number l / (32 / kCount). At each step a lane hands over the numbers that its partner is to
// finish.
template <int kCount>
__device__ __forceinline__ float warp_sums(float (&values)[kCount]) {
  static_assert(kCount >= 1 && kWarp % kCount == 0, "a power of two, up to 32");
  constexpr int kLanes = kWarp / kCount;  // of one sum, in the end
  const int i_lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
    const bool upper = (i_lane & kLanes * half) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float kept = upper ? values[i + half] : values[i];
      const float given = upper ? values[i] : values[i + half];
      values[i] = kept + __shfl_xor_sync(kAllLanes, given, kLanes * half);
    }
  }
  float sum = values[0];
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  return sum;
}

// Sum over the block, known to every thread afterwards. The block's size is a multiple of 32.
// Call it once per kernel: a second call would need a barrier before it reuses the shared memory.
__device__ __forceinline__ float block_sum_once(float value) {
  __shared__ float warp_sums[kMaxBlockThreads / kWarp];
  const int i_lane = threadIdx.x % kWarp;
  const int i_warp = threadIdx.x / kWarp;
  const int num_warps = blockDim.x / kWarp;

  value = warp_sum(value);
  if (i_lane == 0) {
    warp_sums[i_warp] = value;
  }
  __syncthreads();
  // Each warp adds the partial sums for itself, which saves a second barrier.
  return warp_sum(i_lane < num_warps ? warp_sums[i_lane] : 0.0f);
}

}  // namespace bytebound
