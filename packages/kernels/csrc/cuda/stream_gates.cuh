// A small 16-bit matrix times the normed rows, within a weight stream: a warp takes a feature of a
// row and gives it the bits of rms_norm_project, each of whose warps it stands for in turn.
#pragma once

#include "chunk.cuh"
#include "reduce.cuh"
#include "stream_program.cuh"
#include "streamed.cuh"

namespace bytebound {

__device__ __forceinline__ void stream_gates(
    const GatesTask& task, int num_rows, const __half* p_normed, int normed_stride, int i_thread) {
  constexpr int kAtOnce = 4;
  const int i_lane = i_thread % kWarp;
  const int num_parts = task.num_threads / kWarp;  // at most 32
  // Feature after feature to block after block: few warps of a block have one.
#pragma unroll 1
  for (int unit = i_thread / kWarp * gridDim.x + blockIdx.x; unit < task.n * num_rows;
       unit += kStreamWarps * gridDim.x) {
    const int i_row = unit / task.n;
    const int i_feature = unit - i_row * task.n;
    const __half* p_weight = task.p_weight + i_feature * task.weight_row_stride;
    const __half* p_y = p_normed + i_row * normed_stride;
    float own = 0.0f;  // lane l: of part l
#pragma unroll 1
    for (int first = 0; first < num_parts; first += kAtOnce) {
      uint4 b_weights[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int column = ((first + i) * kWarp + i_lane) * kChunk;
        b_weights[i] = column < task.d ? load_streamed(p_weight + column) : make_uint4(0, 0, 0, 0);
      }
      float sums[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int column = ((first + i) * kWarp + i_lane) * kChunk;
        const uint4 y = column < task.d ? *reinterpret_cast<const uint4*>(p_y + column)
                                        : make_uint4(0, 0, 0, 0);
        const auto& b_y = reinterpret_cast<const Pack<__half>&>(y);
        const auto& b_w = reinterpret_cast<const Pack<__half>&>(b_weights[i]);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < kChunk; ++j) {
          sum = fmaf(to_float(b_y.v[j]), to_float(b_w.v[j]), sum);
        }
        sums[i] = sum;
      }
      const float sum = warp_sums(sums);  // lane l: of part first + l / 8
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float part = __shfl_sync(kAllLanes, sum, i * (kWarp / kAtOnce));
        own = i_lane == first + i ? part : own;
      }
    }
    const float product = warp_sum(i_lane < num_parts ? own : 0.0f);
    if (i_lane == 0) {
      store_relaxed(task.p_out + i_row * task.out_row_stride + i_feature,
                    from_float<__half>(product));
    }
  }
}

}  // namespace bytebound
