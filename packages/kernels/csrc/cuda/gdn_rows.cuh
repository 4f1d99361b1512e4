// What a Gated DeltaNet step does with a row before it meets the state: the convolution over the
// window of earlier inputs, and the two gates.
#pragma once

#include "chunk.cuh"
#include "convert.cuh"

namespace bytebound {

constexpr int kTaps = 4;
constexpr int kWindow = kTaps - 1;
constexpr int kConvRows = 4;  // rows of one thread that are convolved side by side

// Two neighbouring channels or columns.
template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T v[2];
};

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

__device__ __forceinline__ float silu_fast(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

// Taps and inputs of two channels.
template <typename T>
struct ConvPair {
  Pack<T> weight;           // [2][kTaps]
  Pair<T> window[kWindow];  // [2][kWindow], flat
};

template <typename T>
__device__ __forceinline__ ConvPair<T> load_conv_pair(const T* p_weight,
                                                      const T* p_window_first,
                                                      int channel) {
  ConvPair<T> b_pair;
  b_pair.weight = *reinterpret_cast<const Pack<T>*>(p_weight + channel * kTaps);
  const auto* p_window = reinterpret_cast<const Pair<T>*>(p_window_first + channel * kWindow);
#pragma unroll
  for (int j = 0; j < kWindow; ++j) {
    b_pair.window[j] = p_window[j];
  }
  return b_pair;
}

// kCount rows of convolve(), whose latencies overlap.
template <int kCount, typename T>
__device__ __forceinline__ void convolve_rows(const Pack<T>& weight,
                                              float (&b_window)[2][kWindow],
                                              const Pair<T>* p_inputs,
                                              int input_stride,
                                              float* p_mixed,
                                              int row_stride) {
  Pair<T> b_inputs[kCount];
  float b_mixed[kCount][2];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    b_inputs[i] = p_inputs[i * input_stride];
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float x = to_float(b_inputs[i].v[c]);
      float sum = __fmul_rn(to_float(weight.v[c * kTaps]), b_window[c][0]);
      sum = fmaf(to_float(weight.v[c * kTaps + 1]), b_window[c][1], sum);
      sum = fmaf(to_float(weight.v[c * kTaps + 2]), b_window[c][2], sum);
      sum = fmaf(to_float(weight.v[c * kTaps + 3]), x, sum);
      b_window[c][0] = b_window[c][1];
      b_window[c][1] = b_window[c][2];
      b_window[c][2] = x;
      b_mixed[i][c] = silu_fast(sum);
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    *reinterpret_cast<float2*>(p_mixed + i * row_stride) =
        make_float2(b_mixed[i][0], b_mixed[i][1]);
  }
}

// Takes two channels through `count` rows, from p_inputs to p_mixed; moves the window along.
template <typename T>
__device__ __forceinline__ void convolve(const Pack<T>& weight,
                                         int count,
                                         float (&b_window)[2][kWindow],
                                         const Pair<T>* p_inputs,
                                         int input_stride,
                                         float* p_mixed,
                                         int row_stride) {
#pragma unroll 1
  for (; count >= kConvRows; count -= kConvRows) {
    convolve_rows<kConvRows>(weight, b_window, p_inputs, input_stride, p_mixed, row_stride);
    p_inputs += kConvRows * input_stride;
    p_mixed += kConvRows * row_stride;
  }
#pragma unroll 1
  for (; count > 0; --count) {
    convolve_rows<1>(weight, b_window, p_inputs, input_stride, p_mixed, row_stride);
    p_inputs += input_stride;
    p_mixed += row_stride;
  }
}

// Moves the window over `count` rows without an output.
template <typename T>
__device__ __forceinline__ void skip_rows(int count,
                                          float (&b_window)[2][kWindow],
                                          const Pair<T>* p_inputs,
                                          int input_stride) {
#pragma unroll 1
  for (int i = max(count - kWindow, 0); i < count; ++i) {
    const Pair<T> b_input = p_inputs[i * input_stride];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      b_window[c][0] = b_window[c][1];
      b_window[c][1] = b_window[c][2];
      b_window[c][2] = to_float(b_input.v[c]);
    }
  }
}

// Inputs come back from float with the bits they had, but for those within a NaN.
template <typename T>
__device__ __forceinline__ void keep_window(const float (&b_window)[2][kWindow], Pair<T>* p_kept) {
#pragma unroll
  for (int j = 0; j < kWindow; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int i = 2 * j + c;
      p_kept[j].v[c] = from_float<T>(b_window[i / kWindow][i % kWindow]);
    }
  }
}

// What the gates of a value head depend on.
struct HeadGates {
  float rate;  // -exp(a_log)
  float dt_bias;
};

__device__ __forceinline__ float2 decay_and_beta(float a, float b, HeadGates gates) {
  const float x = a + gates.dt_bias;
  const float softplus = x > 20.0f ? x : log1pf(expf(x));
  return {expf(gates.rate * softplus), sigmoid(b)};
}

}  // namespace bytebound
