// RMSNorm of a residual that the blocks have just handed over, by every block for itself: the normed
// rows stay in its shared memory. The sums are those of rms_norm, whose block has up to 32 warps:
// each warp here stands for some of them.
#pragma once

#include "handed.cuh"
#include "rms.cuh"
#include "stream_program.cuh"

namespace bytebound {

constexpr int kKeptChunks = 2;  // of a lane, between the sum of squares and the product

__device__ __forceinline__ void receive_chunk(const float* p, float (&b_x)[kChunk]) {
  const float4 lower = receive_floats(p);
  const float4 upper = receive_floats(p + 4);
  b_x[0] = lower.x;
  b_x[1] = lower.y;
  b_x[2] = lower.z;
  b_x[3] = lower.w;
  b_x[4] = upper.x;
  b_x[5] = upper.y;
  b_x[6] = upper.z;
  b_x[7] = upper.w;
}

// All threads of the block call it. Behind it the normed rows may be read.
__device__ __forceinline__ void stream_norm(const NormTask& task,
                                            int num_rows,
                                            int normed_stride,
                                            __half* p_normed,
                                            float* p_squares,
                                            int i_own_thread) {
  const int i_lane = i_own_thread % kWarp;
  const int i_warp = i_own_thread / kWarp;
  const int num_parts = task.num_threads / kWarp;  // warps of rms_norm's block
  const int num_units = num_rows * num_parts;
  const int num_chunks = task.d / kChunk;

  float b_weight[kKeptChunks][kChunk] = {};
  float b_kept[kKeptChunks][kChunk] = {};
#pragma unroll
  for (int i = 0; i < kKeptChunks; ++i) {
    const int unit = i_warp + i * kStreamWarps;
    const int i_chunk = unit % num_parts * kWarp + i_lane;
    if (unit < num_units && i_chunk < num_chunks) {
      load_whole_chunk(task.p_weight + i_chunk * kChunk, b_weight[i]);
    }
  }
  __syncthreads();  // all warps are done with the rows before

  const auto sum_unit = [&](int unit, float (&b_first)[kChunk]) {
    const int i_row = unit / num_parts;
    const int i_thread = unit % num_parts * kWarp + i_lane;
    const float* p_row = task.p_x + i_row * task.x_row_stride;
    float sum = 0.0f;
    if (i_thread < num_chunks) {
      receive_chunk(p_row + i_thread * kChunk, b_first);
      sum = add_squares(sum, b_first);
    }
#pragma unroll 1
    for (int i = i_thread + task.num_threads; i < num_chunks; i += task.num_threads) {
      float b_x[kChunk];
      receive_chunk(p_row + i * kChunk, b_x);
      sum = add_squares(sum, b_x);
    }
    sum = warp_sum(sum);
    if (i_lane == 0) {
      p_squares[i_row * kWarp + unit % num_parts] = sum;
    }
  };
#pragma unroll
  for (int i = 0; i < kKeptChunks; ++i) {
    if (i_warp + i * kStreamWarps < num_units) {
      sum_unit(i_warp + i * kStreamWarps, b_kept[i]);
    }
  }
#pragma unroll 1
  for (int unit = i_warp + kKeptChunks * kStreamWarps; unit < num_units; unit += kStreamWarps) {
    float b_first[kChunk];
    sum_unit(unit, b_first);
  }
  __syncthreads();

  const auto write_chunk = [&](int i_row, int i_chunk, float factor, float (&b_x)[kChunk],
                               const float (&b_w)[kChunk]) {
    normalise(b_x, b_w, factor);
    store_whole_chunk(p_normed + i_row * normed_stride + i_chunk * kChunk, b_x);
    if (task.p_out != nullptr && blockIdx.x == 0) {
      store_whole_chunk(task.p_out + i_row * task.out_row_stride + i_chunk * kChunk, b_x);
    }
  };
  const auto factor_of = [&](int i_row) {
    const float* p_sums = p_squares + i_row * kWarp;
    return inverse_rms(warp_sum(i_lane < num_parts ? p_sums[i_lane] : 0.0f), task.d, task.eps);
  };
  const auto write_again = [&](int i_row, int i_chunk, float factor) {
    float b_x[kChunk];
    float b_w[kChunk];
    receive_chunk(task.p_x + i_row * task.x_row_stride + i_chunk * kChunk, b_x);
    load_whole_chunk(task.p_weight + i_chunk * kChunk, b_w);
    write_chunk(i_row, i_chunk, factor, b_x, b_w);
  };
#pragma unroll
  for (int i = 0; i < kKeptChunks; ++i) {
    const int unit = i_warp + i * kStreamWarps;
    if (unit < num_units) {
      const int i_row = unit / num_parts;
      const int i_thread = unit % num_parts * kWarp + i_lane;
      const float factor = factor_of(i_row);
      if (i_thread < num_chunks) {
        write_chunk(i_row, i_thread, factor, b_kept[i], b_weight[i]);
      }
#pragma unroll 1
      for (int j = i_thread + task.num_threads; j < num_chunks; j += task.num_threads) {
        write_again(i_row, j, factor);
      }
    }
  }
#pragma unroll 1
  for (int unit = i_warp + kKeptChunks * kStreamWarps; unit < num_units; unit += kStreamWarps) {
    const int i_row = unit / num_parts;
    const float factor = factor_of(i_row);
#pragma unroll 1
    for (int j = unit % num_parts * kWarp + i_lane; j < num_chunks; j += task.num_threads) {
      write_again(i_row, j, factor);
    }
  }
  __syncthreads();
}

}  // namespace bytebound
