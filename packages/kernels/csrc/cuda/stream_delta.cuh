// A Gated DeltaNet step within a weight stream: a team takes a value head, each of its eight warps a
// slice of V, so that gdn_step's cluster is a team and its messages are shared memory. What does
// not depend on this pass, the replay of pending rows, is done while the projection is awaited.
#pragma once

#include "delta_rule.cuh"
#include "gdn_rows.cuh"
#include "handed.cuh"
#include "stream_program.cuh"

namespace bytebound {

constexpr int kMixedStride = 3 * kDeltaDim;  // [q | k | v] of a row, in floats
constexpr int kDeltaPairs = kMixedStride / 2;
constexpr int kMostDeltaRows = 2 * static_cast<int>(kGdnMaxRows);

// Shared memory of a team for that many pending and current rows, in floats.
__host__ __device__ constexpr int delta_shared_floats(int num_rows) {
  return num_rows * (kMixedStride + 4 + 2);
}

__device__ __forceinline__ int delta_channel(int i_pair, int i_head, int i_key, int h) {
  if (i_pair < kDeltaDim / 2) {
    return i_key * kDeltaDim + 2 * i_pair;
  }
  if (i_pair < kDeltaDim) {
    return (h + i_key) * kDeltaDim + 2 * i_pair - kDeltaDim;
  }
  return (2 * h + i_head) * kDeltaDim + 2 * (i_pair - kDeltaDim);
}

// One value head, by all threads of the team.
__device__ __forceinline__ void stream_delta_head(
    const DeltaTask& task, int i_head, int num_rows, const Team& team, float* p_shared) {
  using T = __half;
  const int i_lane = team.i_lane;
  const int i_warp = team.i_warp;
  const int i_key = i_head / task.ratio;
  const int first_row = task.pending_rows;
  const int all_rows = first_row + num_rows;
  float* p_mixed = p_shared;
  auto* p_norms = reinterpret_cast<KeyNorms*>(p_mixed + all_rows * kMixedStride);
  auto* p_decay = reinterpret_cast<float2*>(p_norms + all_rows);

  const int lane_row = i_lane / kColumnLanes * kRun;
  const int lane_column = i_lane % kColumnLanes * kLaneColumns;
  float* p_state = task.p_state +
                   (static_cast<std::int64_t>(i_head) * kDeltaDim + lane_row) * kDeltaDim +
                   i_warp * kSliceColumns + lane_column;
  float b_state[kLaneRows][kLaneColumns];
  load_state(p_state, b_state);

  const int num_replayed =
      first_row > 0 ? min(max(*task.p_num_accepted, 0), first_row) : 0;
  const bool has_channels = team.i_thread < kDeltaPairs;
  const int channel = delta_channel(team.i_thread, i_head, i_key, task.h);
  // The last threads have no channels: they take the gates, the current rows' first.
  const int i_gate = kTeamThreads - 1 - team.i_thread;
  const auto load_gates = [&]() {
    return HeadGates{-expf(task.p_a_log[i_head]), task.p_dt_bias[i_head]};
  };
  float* p_own = p_mixed + 2 * team.i_thread;
  Pair<T> b_kept[kWindow] = {};  // the window behind the replayed rows
  const auto open_window = [&](const Pair<T>(&b_pairs)[kWindow], float(&b_window)[2][kWindow]) {
#pragma unroll
    for (int i = 0; i < 2 * kWindow; ++i) {
      b_window[i / kWindow][i % kWindow] = to_float(b_pairs[i / 2].v[i % 2]);
    }
  };
  if (has_channels) {
    const ConvPair<T> b_conv = load_conv_pair(task.p_conv_weight, task.p_conv_window, channel);
    const T* p_input = task.pending.p_qkv + channel;
#pragma unroll 1
    for (int i = 0; i < num_replayed; ++i) {
      async_copy_4(shared_address(p_own + i * kMixedStride),
                   p_input + i * task.pending.qkv_row_stride);
    }
    float b_window[2][kWindow];
    open_window(b_conv.window, b_window);
    async_copy_wait();
    convolve(b_conv.weight, num_replayed, b_window, p_own, kMixedStride);
    keep_window(b_window, b_kept);
  } else if (i_gate < num_replayed) {
    p_decay[i_gate] = decay_and_beta(
        to_float(task.pending.p_a[i_gate * task.pending.a_row_stride + i_head]),
        to_float(task.pending.p_b[i_gate * task.pending.b_row_stride + i_head]),
        load_gates());
  }
  sync_team(team);
  const auto find_norms = [&](int i_row) {
    const KeyNorms norms = key_norms(p_mixed + i_row * kMixedStride + 4 * i_lane);
    if (i_lane == 0) {
      p_norms[i_row] = norms;
    }
  };
  if (i_warp < num_replayed) {
    find_norms(i_warp);
  }
  sync_team(team);
  const float* p_keys = p_mixed + lane_row;
  float* p_value = p_mixed + 2 * kDeltaDim + i_warp * kSliceColumns + lane_column +
                   i_lane / kColumnLanes % kLaneColumns;
#pragma unroll 1
  for (int i_row = 0; i_row < num_replayed; ++i_row) {
    delta_step<false>(b_state, p_keys + i_row * kMixedStride, p_value[i_row * kMixedStride],
                      p_decay[i_row], p_norms[i_row], i_lane);
  }
  if (num_replayed > 0) {
    store_state(p_state, b_state);
  }

  // From here on the rows of this pass.
  if (has_channels) {
    // Once more: registers are scarce in between.
    const Pack<T> b_weight =
        *reinterpret_cast<const Pack<T>*>(task.p_conv_weight + channel * kTaps);
    float* p_current = p_own + first_row * kMixedStride;
    const T* p_input = task.current.p_qkv + channel;
#pragma unroll 1
    for (int i = 0; i < num_rows; ++i) {
      const uint32_t word = receive_halves(p_input + i * task.current.qkv_row_stride);
      *reinterpret_cast<uint32_t*>(p_current + i * kMixedStride) = word;
    }
    float b_window[2][kWindow];
    open_window(b_kept, b_window);
    convolve(b_weight, num_rows, b_window, p_current, kMixedStride);
  } else if (i_gate < num_rows) {
    p_decay[first_row + i_gate] = decay_and_beta(
        to_float(receive_half(task.current.p_a + i_gate * task.current.a_row_stride + i_head)),
        to_float(receive_half(task.current.p_b + i_gate * task.current.b_row_stride + i_head)),
        load_gates());
  }
  // The output gate of this warp's row: lane l has values 2 l, 2 l + 1 and 64 further on.
  constexpr int kHalf = kDeltaDim / 2;
  float b_gate[2][2] = {};
  if (i_warp < num_rows) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int value = 2 * i_lane + j * kHalf;
      const uint32_t word = receive_halves(task.p_z + i_warp * task.z_row_stride +
                                           i_head * kDeltaDim + value);
      const float2 z = __half22float2(*reinterpret_cast<const __half2*>(&word));
      b_gate[j][0] = task.p_norm_weight[value] * silu_fast(z.x);
      b_gate[j][1] = task.p_norm_weight[value + 1] * silu_fast(z.y);
    }
  }
  sync_team(team);
  if (i_warp < num_rows) {
    find_norms(first_row + i_warp);
  }
  sync_team(team);
#pragma unroll 1
  for (int i_row = first_row; i_row < all_rows; ++i_row) {
    const float o =
        delta_step<true>(b_state, p_keys + i_row * kMixedStride, p_value[i_row * kMixedStride],
                         p_decay[i_row], p_norms[i_row], i_lane);
    if (i_lane >= kWarp / 2) {
      p_value[i_row * kMixedStride] = o;
    }
  }
  sync_team(team);
  if (i_warp < num_rows) {
    const float* p_o = p_mixed + (first_row + i_warp) * kMixedStride + 2 * kDeltaDim;
    const float part = i_lane < kSlices ? sum_of_squares(p_o + i_lane * kSliceColumns) : 0.0f;
    float b_parts[kSlices];
#pragma unroll
    for (int j = 0; j < kSlices; ++j) {
      b_parts[j] = __shfl_sync(kAllLanes, part, j);
    }
    const float sum = ((b_parts[0] + b_parts[1]) + (b_parts[2] + b_parts[3])) +
                      ((b_parts[4] + b_parts[5]) + (b_parts[6] + b_parts[7]));
    const float inverse_rms = rsqrtf(fmaf(sum, 1.0f / kDeltaDim, task.eps));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int value = 2 * i_lane + j * kHalf;
      const float2 o = *reinterpret_cast<const float2*>(p_o + value);
      const __half2 out = __halves2half2(from_float<T>(o.x * inverse_rms * b_gate[j][0]),
                                         from_float<T>(o.y * inverse_rms * b_gate[j][1]));
      store_relaxed_4(task.p_out + i_warp * task.out_row_stride + i_head * kDeltaDim + value,
                      *reinterpret_cast<const uint32_t*>(&out));
    }
  }
  sync_team(team);  // the memory is the next op's
}

// Heads go to one team of a block, from the last block on: dense products begin at the first.
__device__ __forceinline__ void stream_delta(const DeltaTask& task,
                                             int num_rows,
                                             const Team& team,
                                             float* p_shared) {
  if (team.index != kTeams - 1) {
    return;
  }
  const int num_blocks = gridDim.x;
  const int step = num_blocks >= 2 * task.hv ? 2 : 1;
  const int i_block = num_blocks - 1 - static_cast<int>(blockIdx.x);
  if (i_block % step != 0 || i_block / step >= task.hv) {
    return;
  }
  sync_team(team);
#pragma unroll 1
  for (int i_head = i_block / step; i_head < task.hv; i_head += num_blocks / step) {
    stream_delta_head(task, i_head, num_rows, team, p_shared);
  }
}

}  // namespace bytebound
