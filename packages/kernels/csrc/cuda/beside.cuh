// A small 16-bit matrix times the activations that a product reads, in blocks of their own behind
// that product's: out[r, n] = sum_k x[r, k] weight[n, k].
//
//                    columns: part 0   part 1   part 2  ...    a part is 256 columns, 8 of a lane
//   features 0 .. 3         | warp 0 | warp 1 | warp 2 |
//   features 4 .. 7         |  ...                     |       of each block, which has some fours
//
// The parts of a sum meet in shared memory. Its order is that of rms_norm_project, of which a part
// is a warp: K alone decides it, not the number of blocks or of rows.
#pragma once

#include <cstdint>

#include "../matvec.h"
#include "async_copy.cuh"
#include "chunk.cuh"
#include "dependent.cuh"
#include "dynamic_shared.cuh"
#include "reduce.cuh"
#include "streamed.cuh"

namespace bytebound {

struct BesideTask {
  const void* p_weight;            // [N, K], rows 16-byte aligned
  void* p_out;                     // [R, N]
  std::int64_t weight_row_stride;  // in elements
  std::int64_t out_row_stride;     // in elements
  int n;
  int k;           // a multiple of 8, at most kMaxBesideK
  int num_blocks;  // the last ones of the grid
};

// Sums of parts that there is room for in shared memory, for each row: more fours take turns.
constexpr int kBesideRowFloats = 1024;

template <typename T, int kRows>
__device__ __forceinline__ void beside_block(const BesideTask& task,
                                             const T* p_x,
                                             std::int64_t x_row_stride,
                                             int i_block) {
  constexpr int kThreads = kMatvecWarps * kWarp;
  constexpr int kAhead = 2;  // fours of a part that a warp has asked for
  constexpr int kFour = kBesideFeatures;
  BYTEBOUND_DYNAMIC_SHARED(float, part_sums);  // [four][row][feature][part]
  const int i_lane = threadIdx.x % kWarp;
  const int i_warp = threadIdx.x / kWarp;
  const int num_parts = (task.k + kWarp * kChunk - 1) / (kWarp * kChunk);
  const int num_fours = (task.n + kFour - 1) / kFour;
  const int end = (i_block + 1) * num_fours / task.num_blocks;
  const int at_once = kBesideRowFloats / (kFour * num_parts);  // fours whose sums there is room for
  const T* p_weight = static_cast<const T*>(task.p_weight);

  int first = i_block * num_fours / task.num_blocks;
  int num_units = min(end - first, at_once) * num_parts;
  uint4 b_ahead[kAhead][kFour];
  // Beyond the matrix it is the last row once more, whose products are not stored.
  const auto ask = [&](int unit, uint4(&b_weights)[kFour]) {
    const int i_four = first + unit / num_parts;
    const int column = (unit % num_parts * kWarp + i_lane) * kChunk;
#pragma unroll
    for (int f = 0; f < kFour; ++f) {
      const int i_feature = min(i_four * kFour + f, task.n - 1);
      b_weights[f] = unit < num_units && column < task.k
                         ? load_streamed(p_weight + i_feature * task.weight_row_stride + column)
                         : make_uint4(0, 0, 0, 0);
    }
  };
  // Not through the constant path: the kernel before this one may have written these bytes.
  const auto row_chunk = [&](int i_row, int column) {
    return column < task.k ? *reinterpret_cast<const uint4*>(p_x + i_row * x_row_stride + column)
                           : make_uint4(0, 0, 0, 0);
  };
  const auto ask_first = [&]() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      ask(i_warp + i * kMatvecWarps, b_ahead[i]);
    }
  };

  ask_first();
  // Until there are activations, the memory has little else to do.
  for (int i = first * kFour + static_cast<int>(threadIdx.x); i < min(end * kFour, task.n);
       i += kThreads) {
    prefetch_bytes(p_weight + i * task.weight_row_stride, task.k * static_cast<int>(sizeof(T)));
  }
  allow_next_kernel();
  wait_for_previous_kernel();

#pragma unroll 1
  while (true) {
#pragma unroll 1
    for (int first_unit = i_warp; first_unit < num_units; first_unit += kAhead * kMatvecWarps) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int unit = first_unit + i * kMatvecWarps;
        if (unit >= num_units) {
          break;
        }
        const int i_four = unit / num_parts;  // of those at hand
        const int i_part = unit % num_parts;
        const int column = (i_part * kWarp + i_lane) * kChunk;
        float b_weights[kFour][kChunk];
#pragma unroll
        for (int f = 0; f < kFour; ++f) {
          const auto& b_pack = reinterpret_cast<const Pack<T>&>(b_ahead[i][f]);
#pragma unroll
          for (int j = 0; j < kChunk; ++j) {
            b_weights[f][j] = to_float(b_pack.v[j]);
          }
        }
        ask(unit + kAhead * kMatvecWarps, b_ahead[i]);
        uint4 b_next = row_chunk(0, column);
        // Not unrolled: the blocks share their instruction cache with those of the product.
#pragma unroll 1
        for (int i_row = 0; i_row < kRows; ++i_row) {
          const uint4 b_x = b_next;
          if (i_row + 1 < kRows) {
            b_next = row_chunk(i_row + 1, column);
          }
          const auto& b_pack = reinterpret_cast<const Pack<T>&>(b_x);
          float sums[kFour];
#pragma unroll
          for (int f = 0; f < kFour; ++f) {
            sums[f] = 0.0f;
#pragma unroll
            for (int j = 0; j < kChunk; ++j) {
              sums[f] = fmaf(to_float(b_pack.v[j]), b_weights[f][j], sums[f]);
            }
          }
          const float sum = warp_sums(sums);
          if (i_lane % (kWarp / kFour) == 0) {
            const int i_feature = (i_four * kRows + i_row) * kFour + i_lane / (kWarp / kFour);
            part_sums[i_feature * num_parts + i_part] = sum;
          }
        }
      }
    }
    __syncthreads();
    const int num_sums = min(end - first, at_once) * kRows;
    for (int i = i_warp; i < num_sums; i += kMatvecWarps) {
      float sums[kFour];
#pragma unroll
      for (int f = 0; f < kFour; ++f) {
        sums[f] = i_lane < num_parts ? part_sums[(i * kFour + f) * num_parts + i_lane] : 0.0f;
      }
      const float sum = warp_sums(sums);
      const int i_feature = (first + i / kRows) * kFour + i_lane / (kWarp / kFour);
      if (i_lane % (kWarp / kFour) == 0 && i_feature < task.n) {
        static_cast<T*>(task.p_out)[i % kRows * task.out_row_stride + i_feature] =
            from_float<T>(sum);
      }
    }
    first += at_once;
    if (first >= end) {
      break;
    }
    __syncthreads();  // before the next sums take their places
    num_units = min(end - first, at_once) * num_parts;
    ask_first();
  }
}

}  // namespace bytebound
