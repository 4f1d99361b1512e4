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
