// One draw from unnormalised float64 weights by inverse CDF in id order, over many blocks.
//
//   every block     adds the weights of its slice of 2048 ids                  -> partial[slice]
//   the last block  finds the slice in which the running sum passes u * total, then the id in it
//
// The order of the sums depends on N alone. They differ from a sum in plain id order by rounding: a
// draw can differ from such a one only where u * total is within that rounding of a running sum.
#pragma once

#include <cstdint>

#include "chunk.cuh"
#include "scan.cuh"

namespace bytebound {

constexpr int kSlice = kSearchThreads * kChunk;  // ids of one block
constexpr int kMaxSlices = kSlice;               // what the last block looks at with one chunk each
constexpr std::int64_t kMaxDrawN = std::int64_t{kMaxSlices} * kSlice;

struct DrawShared {
  double sums[2][kSearchWarps];
  Candidate best[2][kSearchWarps];
  double before;
};

// Where a target falls among the 2048 weights that the block's threads hold in order.
struct Place {
  int index;      // -1: every weight is 0
  double before;  // the sum in front of it
};

// The lowest index whose weight is above 0 and whose running sum is above the target; else, after
// rounding, the last index with any weight. kUse picks the shared arrays: use 0, then 1.
template <int kUse>
__device__ __forceinline__ Place
find_place(const double (&b_weight)[kChunk], double before, double target, DrawShared& shared) {
  constexpr Candidate kFound = Candidate{1} << 63;
  Candidate best = kNoCandidate;
  double running = before;
  double before_best = before;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const Candidate index = threadIdx.x * kChunk + j;
    const double before_this = running;
    running += b_weight[j];
    if (b_weight[j] > 0.0 && best < kFound) {
      best = running > target ? kFound | static_cast<std::uint32_t>(~index) : index + 1;
      before_best = before_this;
    }
  }
  const Candidate block_best = block_max(best, shared.best[kUse]);
  if (best == block_best && best != kNoCandidate) {
    shared.before = before_best;
  }
  __syncthreads();
  Place place = {-1, 0.0};
  if (block_best != kNoCandidate) {
    place.index =
        block_best >= kFound ? candidate_index(block_best) : static_cast<int>(block_best) - 1;
    place.before = shared.before;
  }
  return place;
}

__device__ __forceinline__ double sum_of(const double (&b_weight)[kChunk]) {
  double sum = 0.0;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    sum += b_weight[j];
  }
  return sum;
}

// The sum of this block's slice, known to every thread.
__device__ __forceinline__ double slice_sum(const double (&b_weight)[kChunk], DrawShared& shared) {
  return block_scan(sum_of(b_weight), shared.sums[0]).total;
}

struct Drawn {
  int id;        // -1: the weights do not have a finite sum above 0
  double total;  // of all weights
};

// For the last block, in all threads, once p_partial[0 .. num_slices-1] are there. load(i_first,
// b_weight) gives the weights of 8 ids, 0 beyond the row; the same bits as the partials came from.
template <typename Load>
__device__ __forceinline__ Drawn finish_draw(
    const double* p_partial, int num_slices, double uniform, DrawShared& shared, const Load& load) {
  double b_weight[kChunk];
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const int i_slice = threadIdx.x * kChunk + j;
    b_weight[j] = i_slice < num_slices ? p_partial[i_slice] : 0.0;
  }
  __syncthreads();  // the shared sums may still be in use for the slice
  const BlockScan<double> slices = block_scan(sum_of(b_weight), shared.sums[0]);
  const double total = slices.total;
  if (!(total > 0.0) || isinf(total)) {
    return {-1, total};
  }
  // The product can round up to the total.
  const double below_total = __longlong_as_double(__double_as_longlong(total) - 1);
  const double target = fmin(uniform * total, below_total);
  const Place slice = find_place<0>(b_weight, slices.before, target, shared);

  load(slice.index * kSlice + static_cast<int>(threadIdx.x) * kChunk, b_weight);
  const BlockScan<double> ids = block_scan(sum_of(b_weight), shared.sums[1]);
  const Place id = find_place<1>(b_weight, ids.before, target - slice.before, shared);
  return {id.index < 0 ? -1 : slice.index * kSlice + id.index, total};
}

}  // namespace bytebound
