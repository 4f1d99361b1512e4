// The second kernel of attention_decode: a block for 64 dims of a query adds what the leaves have
// of it, in a fixed order, divides by the sum of the weights and gates.
#pragma once

#include <cstdint>

#include "attention_args.cuh"
#include "attention_leaf.cuh"
#include "attention_tile.cuh"
#include "convert.cuh"
#include "dependent.cuh"
#include "reduce.cuh"

namespace bytebound {

constexpr int kMergeDims = 64;
constexpr int kMergeLanes = kMergeDims / 4;
constexpr int kMergeWays = 16;  // leaves that are added side by side
constexpr int kMergeThreads = kMergeLanes * kMergeWays;
constexpr int kMergeFewRows = 4;

// kFewRows: up to kMergeFewRows. A way then loads 12 leaves before anything is known of them; with
// more rows 8, for fewer registers let all blocks run at once. It is the same order of sums.
template <typename T, bool kFewRows>
__global__ void __launch_bounds__(kMergeThreads, kFewRows ? 3 : 4)
    attention_decode_merge_kernel(__grid_constant__ const AttentionArgs args) {
  constexpr int kMergeAhead = kFewRows ? 12 : 8;
  static_assert(kMergeAhead * kMergeWays <= kMergeThreads, "a thread for each");
  __shared__ float s_max[kMergeThreads / kWarp];
  __shared__ float2 s_max_sum[kMergeAhead * kMergeWays];
  __shared__ float4 s_out[kMergeWays][kMergeLanes];
  __shared__ float s_sum[kMergeWays];
  const int i_way = threadIdx.x / kMergeLanes;
  const int i_lane = threadIdx.x % kMergeLanes;
  const int i_vector = blockIdx.x;  // row and head
  const int i_row = i_vector / args.num_heads;
  const int i_head = i_vector % args.num_heads;
  const int i_dim = blockIdx.y * kMergeDims + i_lane * 4;

  allow_next_kernel();
  // Written before the leaves' kernel, which let this one start when all of that was complete.
  const int position = *args.p_position;
  const T* p_gate = static_cast<const T*>(args.p_q_gate) + i_row * args.q_gate_row_stride +
                    i_head * 2 * kHeadDim + kHeadDim;
  const int i_own = blockIdx.y * kMergeDims + threadIdx.x % kMergeDims;
  const float b_gate = to_float(p_gate[i_own]);
  wait_for_previous_kernel();
  T* p_out = static_cast<T*>(args.p_out) + i_row * args.out_row_stride + i_head * kHeadDim + i_dim;
  if (!is_in_range(position, args)) {
    if (i_way == 0) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        p_out[j] = from_float<T>(__int_as_float(0x7fffffff));
      }
    }
    return;
  }
  const int count = num_leaves(position + i_row + 1);
  const int64_t i_partial = static_cast<int64_t>(i_vector) * args.max_leaves;
  const float2* p_max_sum = args.p_max_sum + i_partial;
  const auto* p_partial =
      reinterpret_cast<const float4*>(args.p_partial + i_partial * kHeadDim + i_dim);

  // What is loaded before anything is known of the leaves: outputs in registers, maxima and sums,
  // which all dims share, in shared memory.
  float4 b_ahead[kMergeAhead];
  const int i_ahead = threadIdx.x;
  float2 b_max_sum = make_float2(kMinusInfinity, 0.0f);
  if (i_ahead < min(count, kMergeAhead * kMergeWays)) {
    b_max_sum = p_max_sum[i_ahead];
  }
#pragma unroll
  for (int j = 0; j < kMergeAhead; ++j) {
    const int i = i_way + j * kMergeWays;
    b_ahead[j] = i < count ? p_partial[static_cast<int64_t>(i) * (kHeadDim / 4)]
                           : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  float largest = b_max_sum.x;
  for (int i = kMergeAhead * kMergeWays + i_ahead; i < count; i += kMergeThreads) {
    largest = fmaxf(largest, p_max_sum[i].x);
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
  }
  if (i_ahead < kMergeAhead * kMergeWays) {
    s_max_sum[i_ahead] = b_max_sum;
  }
  if (threadIdx.x % kWarp == 0) {
    s_max[threadIdx.x / kWarp] = largest;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMergeThreads / kWarp; ++i) {
    largest = fmaxf(largest, s_max[i]);
  }

  // Way w adds leaves w, w + 16, w + 32, ... in this order, then the ways are added in theirs.
  float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float sum = 0.0f;
  const auto add_leaf = [&](const float2& max_sum, const float4& partial) {
    const float weight = exp2_fast(max_sum.x - largest);
    sum = fmaf(max_sum.y, weight, sum);
    out.x = fmaf(partial.x, weight, out.x);
    out.y = fmaf(partial.y, weight, out.y);
    out.z = fmaf(partial.z, weight, out.z);
    out.w = fmaf(partial.w, weight, out.w);
  };
#pragma unroll
  for (int j = 0; j < kMergeAhead; ++j) {
    if (i_way + j * kMergeWays < count) {
      add_leaf(s_max_sum[i_way + j * kMergeWays], b_ahead[j]);
    }
  }
#pragma unroll 4
  for (int i = i_way + kMergeAhead * kMergeWays; i < count; i += kMergeWays) {
    add_leaf(p_max_sum[i], p_partial[static_cast<int64_t>(i) * (kHeadDim / 4)]);
  }
  s_out[i_way][i_lane] = out;
  if (i_lane == 0) {
    s_sum[i_way] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= kMergeDims) {
    return;
  }
  // From here on one dim for each thread.
  float total = 0.0f;
  float total_sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kMergeWays; ++i) {
    total += reinterpret_cast<const float*>(s_out[i])[threadIdx.x];
    total_sum += s_sum[i];
  }
  const float gate = 1.0f / (1.0f + expf(-b_gate));
  static_cast<T*>(args.p_out)[i_row * args.out_row_stride + i_head * kHeadDim + i_own] =
      from_float<T>(total / total_sum * gate);
}

}  // namespace bytebound
