// RMSNorm of a residual that the blocks have just handed over, by every block for itself: the
// normed rows stay in its shared memory. The sums are those of rms_norm, whose block has up to 32
// warps: each warp here stands for some of them.
//
// Its instructions run once a call and come from far: few of them matter more than few operations.
#pragma once

#include "handed.cuh"
#include "rms.cuh"
#include "stream_program.cuh"

namespace bytebound {

constexpr int kNormMaxD =
    kMaxBlockThreads * kChunk;  // one chunk for each thread of rms_norm's block
constexpr int kRowsAtOnce = 2;
constexpr int kPartsAtOnce = 2;  // a part of a row is what a warp of rms_norm's block has of it
constexpr int kPartColumns = kWarp * kChunk;

// Four values of a lane and four that are 128 further on: together the lanes have a part.
struct PartOfRow {
  uint4 b_x[2];

  __device__ __forceinline__ float4 values(int i) const {
    return make_float4(__uint_as_float(b_x[i].x), __uint_as_float(b_x[i].y),
                       __uint_as_float(b_x[i].z), __uint_as_float(b_x[i].w));
  }
  // The sum of squares, as rms_norm's warp has it: over the eight values of a chunk in order, then
  // over the chunks in a tree. A chunk lies in two lanes. Valid in odd lanes.
  __device__ __forceinline__ float sum_squares(int i_lane) const {
    float b_sums[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 x = values(i);
      const auto add = [&](float sum) {
        return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, sum))));
      };
      const float before = __shfl_up_sync(kAllLanes, add(0.0f), 1);
      b_sums[i] = add(i_lane % 2 != 0 ? before : 0.0f);
    }
    float sum = b_sums[0] + b_sums[1];
#pragma unroll
    for (int distance = kWarp / 2; distance > 1; distance /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    return sum;
  }
};

// All threads of the block call it. Behind it the normed rows may be read.
__device__ __forceinline__ void stream_norm(const NormTask& task,
                                            int num_rows,
                                            int normed_stride,
                                            __half* p_normed,
                                            float* p_squares,
                                            int i_thread) {
  // What this thread has put back into the workspace comes before whatever it hands over next.
  __threadfence();
  constexpr int kUnits = kRowsAtOnce * kPartsAtOnce;
  const int i_lane = i_thread % kWarp;
  const int i_warp = i_thread / kWarp;
  const int num_parts = task.num_threads / kWarp;  // at most 32
  PartOfRow b_parts[kUnits] = {};
  // Unit i is row i / 2 of those at once, part i % 2 of the warp's.
  const auto part_of = [&](int i) { return i_warp + i % kPartsAtOnce * kStreamWarps; };
  const auto column_of = [&](int i, int j) {
    return part_of(i) * kPartColumns + j * (kPartColumns / 2) + 4 * i_lane;
  };
  float4 b_weight[kPartsAtOnce][2] = {};
#pragma unroll
  for (int i = 0; i < kPartsAtOnce; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (column_of(i, j) < task.d) {
        b_weight[i][j] = *reinterpret_cast<const float4*>(task.p_weight + column_of(i, j));
      }
    }
  }

  // One word of every 64 columns is enough to wait for: all blocks wait at the same time, and what
  // they ask for is taken from the weights.
  const auto wait_for = [&](int i_row) {
    const int part = part_of(i_lane / 4);
    const int row = i_row + i_lane / 4 / kPartsAtOnce;
    const int column = part * kPartColumns + i_lane % 4 * (kPartColumns / 4);
    if (i_lane < 4 * kUnits && row < num_rows && column < task.d) {
      const float* p = task.p_x + row * task.x_row_stride + column;
      while (load_relaxed_4(p) == ~0u) {
      }
    }
    __syncwarp();
  };
  const auto receive = [&](int i_row) {
    bool any_absent;
    do {
      any_absent = false;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const int row = i_row + i / kPartsAtOnce;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          b_parts[i].b_x[j] =
              row < num_rows && column_of(i, j) < task.d
                  ? load_relaxed_16(task.p_x + row * task.x_row_stride + column_of(i, j))
                  : make_uint4(0, 0, 0, 0);
        }
      }
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        any_absent |= has_absent_word(b_parts[i].b_x[0]) || has_absent_word(b_parts[i].b_x[1]);
      }
    } while (any_absent);
    __syncwarp();
  };

#pragma unroll 1
  for (int i_row = 0; i_row < num_rows; i_row += kRowsAtOnce) {
    wait_for(i_row);
    receive(i_row);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const float sum = b_parts[i].sum_squares(i_lane);
      const int row = i_row + i / kPartsAtOnce;
      if (i_lane == 1 && part_of(i) < num_parts && row < num_rows) {
        p_squares[row * kWarp + part_of(i)] = sum;
      }
    }
  }
  __syncthreads();

#pragma unroll 1
  for (int i_row = 0; i_row < num_rows; i_row += kRowsAtOnce) {
    if (num_rows > kRowsAtOnce) {
      receive(i_row);
    }
#pragma unroll
    for (int i_at = 0; i_at < kRowsAtOnce; ++i_at) {
      const int row = i_row + i_at;
      if (row >= num_rows) {
        break;
      }
      const float square = i_lane < num_parts ? p_squares[row * kWarp + i_lane] : 0.0f;
      const float factor = inverse_rms(warp_sum(square), task.d, task.eps);
#pragma unroll
      for (int i = 0; i < 2 * kPartsAtOnce; ++i) {
        const int column = column_of(i / 2, i % 2);
        if (column < task.d) {
          const float4 x = b_parts[i_at * kPartsAtOnce + i / 2].values(i % 2);
          const float4 w = b_weight[i / 2][i % 2];
          const __half2 lower =
              __floats2half2_rn(x.x * factor * (1.0f + w.x), x.y * factor * (1.0f + w.y));
          const __half2 upper =
              __floats2half2_rn(x.z * factor * (1.0f + w.z), x.w * factor * (1.0f + w.w));
          const uint2 both = make_uint2(*reinterpret_cast<const uint32_t*>(&lower),
                                        *reinterpret_cast<const uint32_t*>(&upper));
          *reinterpret_cast<uint2*>(p_normed + row * normed_stride + column) = both;
          if (task.p_out != nullptr && block_index() == 0) {
            *reinterpret_cast<uint2*>(task.p_out + row * task.out_row_stride + column) = both;
          }
        }
      }
    }
  }
  __syncthreads();
}

}  // namespace bytebound
