// Prefix sums over a block of kSearchThreads, in one fixed order.
#pragma once

#include "select.cuh"

namespace bytebound {

constexpr int kSearchWarps = kSearchThreads / kWarp;

template <typename T>
struct BlockScan {
  T before;  // the sum over all threads in front of this one
  T total;   // the sum over the block
};

// T is an unsigned integer or double. `shared` may be used again after the block's next barrier.
template <typename T>
__device__ __forceinline__ BlockScan<T> block_scan(T value, T (&shared)[kSearchWarps]) {
  const int i_lane = threadIdx.x % kWarp;
  const int i_warp = threadIdx.x / kWarp;
  T inclusive = value;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T other = __shfl_up_sync(kAllLanes, inclusive, distance);
    if (i_lane >= distance) {
      inclusive = other + inclusive;
    }
  }
  if (i_lane == kWarp - 1) {
    shared[i_warp] = inclusive;
  }
  const T exclusive = __shfl_up_sync(kAllLanes, inclusive, 1);
  __syncthreads();
  BlockScan<T> scan = {T{0}, T{0}};
#pragma unroll
  for (int i = 0; i < kSearchWarps; ++i) {
    if (i == i_warp) {
      scan.before = scan.total;
    }
    scan.total += shared[i];
  }
  if (i_lane > 0) {
    scan.before += exclusive;
  }
  return scan;
}

}  // namespace bytebound
