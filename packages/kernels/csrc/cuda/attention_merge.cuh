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

// Shared memory of the threads that merge 64 dims. kAhead: leaves that a way loads before anything
// is known of them.
template <int kAhead>
struct MergeShared {
  float4 out[kMergeWays][kMergeLanes];
  float2 max_sum[kAhead * kMergeWays];
  float max[kMergeThreads / kWarp];
  float sum[kMergeWays];
};

// 64 dims of a query's `count` leaves, by kMergeThreads threads: the mean of the values for the dim
// i_thread of them, where that is below kMergeDims. `sync` is the barrier of these threads. It may
// be called again right away.
template <int kAhead, typename Sync>
__device__ __forceinline__ float merge_leaves(const AttentionArgs& args,
                                              MergeShared<kAhead>& shared,
                                              int i_thread,
                                              int i_vector,
                                              int i_part,
                                              int count,
                                              Sync sync) {
  static_assert(kAhead * kMergeWays <= kMergeThreads, "a thread for each");
  const int i_way = i_thread / kMergeLanes;
  const int i_lane = i_thread % kMergeLanes;
  const int64_t i_partial = static_cast<int64_t>(i_vector) * args.max_leaves;
  const float2* p_max_sum = args.p_max_sum + i_partial;
  const auto* p_partial = reinterpret_cast<const float4*>(args.p_partial + i_partial * kHeadDim +
                                                          i_part * kMergeDims + i_lane * 4);

  // What is loaded before anything is known of the leaves: outputs in registers, maxima and sums,
  // which all dims share, in shared memory.
  float4 b_ahead[kAhead];
  float2 b_max_sum = make_float2(kMinusInfinity, 0.0f);
  if (i_thread < min(count, kAhead * kMergeWays)) {
    b_max_sum = p_max_sum[i_thread];
  }
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    const int i = i_way + j * kMergeWays;
    b_ahead[j] = i < count ? p_partial[static_cast<int64_t>(i) * (kHeadDim / 4)]
                           : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  float largest = b_max_sum.x;
  for (int i = kAhead * kMergeWays + i_thread; i < count; i += kMergeThreads) {
    largest = fmaxf(largest, p_max_sum[i].x);
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
  }
  if (i_thread < kAhead * kMergeWays) {
    shared.max_sum[i_thread] = b_max_sum;
  }
  if (i_thread % kWarp == 0) {
    shared.max[i_thread / kWarp] = largest;
  }
  sync();
#pragma unroll
  for (int i = 0; i < kMergeThreads / kWarp; ++i) {
    largest = fmaxf(largest, shared.max[i]);
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
  for (int j = 0; j < kAhead; ++j) {
    if (i_way + j * kMergeWays < count) {
      add_leaf(shared.max_sum[i_way + j * kMergeWays], b_ahead[j]);
    }
  }
#pragma unroll 4
  for (int i = i_way + kAhead * kMergeWays; i < count; i += kMergeWays) {
    add_leaf(p_max_sum[i], p_partial[static_cast<int64_t>(i) * (kHeadDim / 4)]);
  }
  shared.out[i_way][i_lane] = out;
  if (i_lane == 0) {
    shared.sum[i_way] = sum;
  }
  sync();
  if (i_thread >= kMergeDims) {
    return 0.0f;
  }
  // From here on one dim for each thread.
  float total = 0.0f;
  float total_sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kMergeWays; ++i) {
    total += reinterpret_cast<const float*>(shared.out[i])[i_thread];
    total_sum += shared.sum[i];
  }
  return total / total_sum;
}

__device__ __forceinline__ float gated(float value, float gate) {
  return value * (1.0f / (1.0f + expf(-gate)));
}

// kFewRows: up to kMergeFewRows. A way then loads 12 leaves before anything is known of them; with
// more rows 8, for fewer registers let all blocks run at once. It is the same order of sums.
template <typename T, bool kFewRows>
__global__ void __launch_bounds__(kMergeThreads, kFewRows ? 3 : 4)
    attention_decode_merge_kernel(__grid_constant__ const AttentionArgs args) {
  __shared__ MergeShared<kFewRows ? 12 : 8> s_merge;
  const int i_thread = threadIdx.x;
  const int i_vector = blockIdx.x;  // row and head
  const int i_row = i_vector / args.num_heads;
  const int i_head = i_vector % args.num_heads;

  allow_next_kernel();
  // Written before the leaves' kernel, which let this one start when all of that was complete.
  const int position = *args.p_position;
  const T* p_gate = static_cast<const T*>(args.p_q_gate) + i_row * args.q_gate_row_stride +
                    i_head * 2 * kHeadDim + kHeadDim;
  const int i_own = blockIdx.y * kMergeDims + i_thread % kMergeDims;
  const float b_gate = to_float(p_gate[i_own]);
  wait_for_previous_kernel();
  T* p_out = static_cast<T*>(args.p_out) + i_row * args.out_row_stride + i_head * kHeadDim;
  float mean = __int_as_float(0x7fffffff);
  if (is_in_range(position, args)) {
    mean = merge_leaves(args, s_merge, i_thread, i_vector, blockIdx.y,
                        num_leaves(position + i_row + 1), [] { __syncthreads(); });
  }
  if (i_thread < kMergeDims) {
    p_out[i_own] = from_float<T>(gated(mean, b_gate));
  }
}

}  // namespace bytebound
