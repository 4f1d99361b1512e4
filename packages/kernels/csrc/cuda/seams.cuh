// Row blocks of a product that several warps work on, or several blocks: who has a part of each.
//
//   row block   |--- 0 ---|--- 1 ---|--- 2 ---|
//   warp        |- 0 -|- 1 -|- 2 -|- 3 -|- 4 -|     seams: row block 0 of warps 0 and 1,
//                                                   1 of warps 1 to 3, 2 of warps 3 and 4
//
// All of it follows from the shares, so it is worked out while the first activations are on their
// way. At the end of a product, when the memory has nothing to do, a table is all there is to read.
#pragma once

#include "../matvec.h"
#include "reduce.cuh"

namespace bytebound {

struct Seam {
  int i_row_block;
  short first_warp;  // of this block, that has a part
  short num_warps;   // of this block, that have one
  int num_senders;   // blocks before this one whose sums come here, or kSends
  bool is_tail;      // the first warp's part is the end of its share, not the beginning
};

constexpr int kSends = -1;                    // a block further on has the end of the row block
constexpr int kMostSeams = kMatvecWarps + 1;  // one at each end of a share

// In shared memory, ascending.
struct Seams {
  Seam list[kMostSeams];
  int count;
};

// All lanes of one warp. start_of(i_block, i_warp) is the first item of a warp's share, for i_warp
// from 0 to kMatvecWarps.
template <typename StartOf>
__device__ __forceinline__ void find_seams(Seams& seams, int num_groups, StartOf start_of) {
  const int i_lane = threadIdx.x % kWarp;
  const int i_block = static_cast<int>(blockIdx.x);
  // A lane has the beginning of one share; the last one, the end of the block.
  const int start = start_of(i_block, min(i_lane, kMatvecWarps));
  const int i_row_block = start / num_groups;
  const int first = i_row_block * num_groups;
  const int last = first + num_groups;  // one beyond
  const int start_before = __shfl_up_sync(kAllLanes, start, 1);
  // The first lane whose share begins within a row block speaks for it.
  const bool is_seam =
      i_lane < kMostSeams && start > first && (i_lane == 0 || start_before <= first);
  int end_warp = 0;
#pragma unroll
  for (int w = 0; w < kMatvecWarps; ++w) {
    end_warp += __shfl_sync(kAllLanes, start, w) < last ? 1 : 0;
  }
  const int block_end = __shfl_sync(kAllLanes, start, kMatvecWarps);

  // Blocks that begin in the row block in which this one begins, and the one before them.
  const int first_of_block = __shfl_sync(kAllLanes, first, 0);
  int num_senders = 1;
  unsigned begin_within;
  int i_before = i_block - 1 - i_lane;
  do {
    begin_within =
        __ballot_sync(kAllLanes, i_before > 0 && start_of(max(i_before, 0), 0) > first_of_block);
    num_senders += __popc(begin_within);
    i_before -= kWarp;
  } while (begin_within == kAllLanes);

  const unsigned found = __ballot_sync(kAllLanes, is_seam);
  if (is_seam) {
    const int first_warp = max(i_lane - 1, 0);
    Seam& seam = seams.list[__popc(found & ((1u << i_lane) - 1))];
    seam.i_row_block = i_row_block;
    seam.first_warp = static_cast<short>(first_warp);
    seam.num_warps = static_cast<short>(end_warp - first_warp);
    seam.num_senders = block_end < last ? kSends : i_lane == 0 ? num_senders : 0;
    seam.is_tail = i_lane > 0;
  }
  if (i_lane == 0) {
    seams.count = __popc(found);
  }
}

}  // namespace bytebound
