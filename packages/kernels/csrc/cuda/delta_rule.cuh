// The gated delta rule, a row at a time, on a piece of the state S that a warp holds in registers.
//
//   S <- decay S;   d = beta (v - S^T k);   S <- S + k d^T;   o = S^T q
//
// The piece is 128 x 16, all of K and a slice of V: lane 4 g + p (p < 4) holds columns 4 p to 4 p +
// 3 of rows 32 j + 4 g + i (i < 4, j < 4). q and k come as they are, together with their norms.
#pragma once

#include "../gdn_step.h"
#include "reduce.cuh"

namespace bytebound {

constexpr int kDeltaDim = static_cast<int>(kGdnHeadDim);  // K and V
constexpr int kSlices = 8;                                // of V
constexpr int kSliceColumns = kDeltaDim / kSlices;        // 16
constexpr int kLaneColumns = 4;                           // of S in a lane
constexpr int kColumnLanes = 4;                           // lanes side by side
constexpr int kRuns = 4;                                  // of adjacent rows of S in a lane
constexpr int kRun = 4;                                   // rows of a run
constexpr int kLaneRows = kRuns * kRun;                   // 16
constexpr int kRunStride = kWarp / kColumnLanes * kRun;   // 32 rows from run to run
constexpr float kL2Eps = 1e-6f;
constexpr float kQueryScale = 0.08838834764831845f;  // K^-0.5

// What a row's q and k are scaled by, and their product before that.
struct alignas(16) KeyNorms {
  float inverse_k;
  float scale_q;
  float qk;
};

// A warp's sums over one row of q and k, of which every lane takes 4 values from p_keys on; those
// of k are 128 further on.
__device__ __forceinline__ KeyNorms key_norms(const float* p_keys) {
  const float4 q = *reinterpret_cast<const float4*>(p_keys);
  const float4 k = *reinterpret_cast<const float4*>(p_keys + kDeltaDim);
  float qq = fmaf(q.w, q.w, fmaf(q.z, q.z, fmaf(q.y, q.y, __fmul_rn(q.x, q.x))));
  float kk = fmaf(k.w, k.w, fmaf(k.z, k.z, fmaf(k.y, k.y, __fmul_rn(k.x, k.x))));
  float qk = fmaf(q.w, k.w, fmaf(q.z, k.z, fmaf(q.y, k.y, __fmul_rn(q.x, k.x))));
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float other_qq = __shfl_xor_sync(kAllLanes, qq, distance);
    const float other_kk = __shfl_xor_sync(kAllLanes, kk, distance);
    const float other_qk = __shfl_xor_sync(kAllLanes, qk, distance);
    qq = __fadd_rn(qq, other_qq);
    kk = __fadd_rn(kk, other_kk);
    qk = __fadd_rn(qk, other_qk);
  }
  return {rsqrtf(__fadd_rn(kk, kL2Eps)), rsqrtf(__fadd_rn(qq, kL2Eps)) * kQueryScale, qk};
}

__device__ __forceinline__ void load_state(const float* p_state,
                                           float (&b_state)[kLaneRows][kLaneColumns]) {
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    const int i_row = i / kRun * kRunStride + i % kRun;
    const float4 b_row = __ldcg(reinterpret_cast<const float4*>(p_state + i_row * kDeltaDim));
    b_state[i][0] = b_row.x;
    b_state[i][1] = b_row.y;
    b_state[i][2] = b_row.z;
    b_state[i][3] = b_row.w;
  }
}

__device__ __forceinline__ void store_state(float* p_state,
                                            const float (&b_state)[kLaneRows][kLaneColumns]) {
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    const int i_row = i / kRun * kRunStride + i % kRun;
    *reinterpret_cast<float4*>(p_state + i_row * kDeltaDim) =
        make_float4(b_state[i][0], b_state[i][1], b_state[i][2], b_state[i][3]);
  }
}

// This lane's 16 values of a row of q or k.
__device__ __forceinline__ void load_keys(const float* p_keys, float (&b_keys)[kLaneRows]) {
#pragma unroll
  for (int i_run = 0; i_run < kRuns; ++i_run) {
    const float4 run = *reinterpret_cast<const float4*>(p_keys + i_run * kRunStride);
    b_keys[i_run * kRun] = run.x;
    b_keys[i_run * kRun + 1] = run.y;
    b_keys[i_run * kRun + 2] = run.z;
    b_keys[i_run * kRun + 3] = run.w;
  }
}

// Adds over a pair of lanes and halves the number of values: of two, a lane keeps the one of its
// side and sends the other.
__device__ __forceinline__ float add_halves(float lower,
                                            float upper,
                                            int distance,
                                            bool keeps_upper) {
  const float kept = keeps_upper ? upper : lower;
  const float sent = keeps_upper ? lower : upper;
  return __fadd_rn(kept, __shfl_xor_sync(kAllLanes, sent, distance));
}

// S <- decay S + k delta^T, of this lane's values of k and of its columns of delta. What S depends
// on is written out, so that a replayed row leaves the bits that it left at first.
__device__ __forceinline__ void add_update(float (&b_state)[kLaneRows][kLaneColumns],
                                           const float (&b_k)[kLaneRows],
                                           const float (&b_delta)[kLaneColumns],
                                           float decay) {
#pragma unroll
  for (int c = 0; c < kLaneColumns; ++c) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      b_state[i][c] = fmaf(b_k[i], b_delta[c], __fmul_rn(decay, b_state[i][c]));
    }
  }
}

// One row through a warp's piece of S. p_keys: this lane's first value of q, with those of k 128
// further on; v: of column (lane / 4) % 4 of the lane's four. Of that column lanes 0 to 15 return
// delta, the others o.
__device__ __forceinline__ float delta_step(float (&b_state)[kLaneRows][kLaneColumns],
                                            const float* p_keys,
                                            float v,
                                            float2 decay_beta,
                                            const KeyNorms& norms,
                                            int i_lane) {
  const float decay = decay_beta.x;
  float b_k[kLaneRows];
  float b_q[kLaneRows];
  load_keys(p_keys + kDeltaDim, b_k);
  load_keys(p_keys, b_q);
  float b_sk[kLaneColumns] = {};  // S^T k
  float b_sq[kLaneColumns] = {};  // S^T q
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
#pragma unroll
    for (int c = 0; c < kLaneColumns; ++c) {
      b_sk[c] = fmaf(b_k[i], b_state[i][c], b_sk[c]);
      b_sq[c] = fmaf(b_q[i], b_state[i][c], b_sq[c]);
    }
  }

  // Over K: S^T k in lanes 0 to 15, S^T q in the others.
  const bool upper = i_lane & 16;
  float b_four[kLaneColumns];
#pragma unroll
  for (int c = 0; c < kLaneColumns; ++c) {
    b_four[c] = add_halves(b_sk[c], b_sq[c], 16, upper);
  }
  const float first = add_halves(b_four[0], b_four[2], 8, i_lane & 8);
  const float second = add_halves(b_four[1], b_four[3], 8, i_lane & 8);
  const float sum = add_halves(first, second, 4, i_lane & 4);

  // d, times the norm's factor of k, so that k itself can stay as it is. Valid in lanes 0 to 15.
  const float missing = fmaf(-__fmul_rn(decay, norms.inverse_k), sum, v);
  const float delta = __fmul_rn(__fmul_rn(norms.inverse_k, decay_beta.y), missing);
  float b_delta[kLaneColumns];
#pragma unroll
  for (int c = 0; c < kLaneColumns; ++c) {
    b_delta[c] = __shfl_sync(kAllLanes, delta, kColumnLanes * c + i_lane % kColumnLanes);
  }
  add_update(b_state, b_k, b_delta, decay);
  const float own_delta = __shfl_sync(kAllLanes, delta, i_lane & 15);
  const float o = __fmul_rn(norms.scale_q, fmaf(norms.qk, own_delta, __fmul_rn(decay, sum)));
  return upper ? o : delta;
}

// The sum of squares of an item's o, over its 16 columns.
__device__ __forceinline__ float sum_of_squares(const float* p_o) {
  float b_sums[4] = {};
#pragma unroll
  for (int i = 0; i < kSliceColumns; i += 4) {
    const float4 o = *reinterpret_cast<const float4*>(p_o + i);
    b_sums[0] = fmaf(o.x, o.x, b_sums[0]);
    b_sums[1] = fmaf(o.y, o.y, b_sums[1]);
    b_sums[2] = fmaf(o.z, o.z, b_sums[2]);
    b_sums[3] = fmaf(o.w, o.w, b_sums[3]);
  }
  return __fadd_rn(__fadd_rn(b_sums[0], b_sums[1]), __fadd_rn(b_sums[2], b_sums[3]));
}

}  // namespace bytebound
