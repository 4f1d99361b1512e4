// A Gated DeltaNet step within a weight stream: a team takes a value head, each of its eight warps
// a slice of V, so that gdn_step's cluster is a team and its messages are shared memory. The replay
// of pending rows does not depend on this pass: it is an op of its own, done while all wait for a
// norm.
#pragma once

#include "delta_rule.cuh"
#include "gdn_rows.cuh"
#include "handed.cuh"
#include "stream_program.cuh"

namespace bytebound {

constexpr int kMixedStride = 4 * kDeltaDim;  // [q | k | v | delta] of a row, in floats
constexpr int kDeltaPairs = 3 * kDeltaDim / 2;

// Shared memory of a team for that many rows, in floats.
__host__ __device__ constexpr int delta_shared_floats(int num_rows) {
  return num_rows * (kMixedStride + 4 + 2 + kDeltaDim);
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

// What a thread of a team has of a value head.
struct DeltaPlace {
  int i_head;
  int i_key;
  int lane_row;
  int lane_column;
  bool has_channels;  // a pair of them
  int channel;        // the first of the pair
  int i_gate;         // the last threads, which have no channels, take a row's gates

  __device__ __forceinline__ DeltaPlace(const DeltaTask& task, int head, const Team& team)
      : i_head(head),
        i_key(head / task.ratio),
        lane_row(team.i_lane / kColumnLanes * kRun),
        lane_column(team.i_lane % kColumnLanes * kLaneColumns),
        has_channels(team.i_thread < kDeltaPairs),
        channel(delta_channel(team.i_thread, head, head / task.ratio, task.h)),
        i_gate(kTeamThreads - 1 - team.i_thread) {}

  __device__ __forceinline__ float* state(const DeltaTask& task, const Team& team) const {
    return task.p_state + (static_cast<std::int64_t>(i_head) * kDeltaDim + lane_row) * kDeltaDim +
           team.i_warp * kSliceColumns + lane_column;
  }
  // This lane's column of v in a row of [q | k | v].
  __device__ __forceinline__ int value(const Team& team) const {
    return 2 * kDeltaDim + team.i_warp * kSliceColumns + lane_column +
           team.i_lane / kColumnLanes % kLaneColumns;
  }
};

// Shared memory of a team.
struct DeltaShared {
  float* p_mixed;  // [row][q | k | v | delta]; o replaces v
  KeyNorms* p_norms;
  float2* p_decay;
  float* p_gate;  // [row][V]: norm_weight * silu(z)

  __device__ __forceinline__ DeltaShared(float* p_shared, int num_rows)
      : p_mixed(p_shared),
        p_norms(reinterpret_cast<KeyNorms*>(p_shared + num_rows * kMixedStride)),
        p_decay(reinterpret_cast<float2*>(p_norms + num_rows)),
        p_gate(p_shared + num_rows * (kMixedStride + 4 + 2)) {}

  __device__ __forceinline__ void find_norms(int i_row, int i_lane) const {
    const KeyNorms norms = key_norms(p_mixed + i_row * kMixedStride + 4 * i_lane);
    if (i_lane == 0) {
      p_norms[i_row] = norms;
    }
  }
};

__device__ __forceinline__ int num_replayed_of(const DeltaTask& task) {
  return task.pending_rows > 0 ? min(max(*task.p_num_accepted, 0), task.pending_rows) : 0;
}

// The inputs of two channels that come before this pass: the window, behind the replayed rows.
__device__ __forceinline__ void load_window(const DeltaTask& task,
                                            int channel,
                                            int num_replayed,
                                            Pair<__half> (&b_inputs)[kWindow]) {
#pragma unroll
  for (int j = 0; j < kWindow; ++j) {
    const int i = j + num_replayed;
    if (i < kWindow) {
      b_inputs[j].v[0] = task.p_conv_window[channel * kWindow + i];
      b_inputs[j].v[1] = task.p_conv_window[(channel + 1) * kWindow + i];
    } else {
      b_inputs[j] = *reinterpret_cast<const Pair<__half>*>(
          task.p_pending_qkv + (i - kWindow) * (2 * task.h + task.hv) * kDeltaDim + channel);
    }
  }
}

// The accepted pending rows into the state of a value head: each warp's slice for itself.
__device__ __forceinline__ void stream_replay_head(const DeltaTask& task,
                                                   int i_head,
                                                   const Team& team) {
  const int num_replayed = num_replayed_of(task);
  if (num_replayed == 0) {
    return;
  }
  const DeltaPlace place(task, i_head, team);
  float b_state[kLaneRows][kLaneColumns];
  load_state(place.state(task, team), b_state);
  const float* p_row = task.p_pending_updates;
#pragma unroll 1
  for (int i = 0; i < num_replayed; ++i) {
    float b_k[kLaneRows];
    load_keys(p_row + place.i_key * kDeltaDim + place.lane_row, b_k);
    const float4 delta = *reinterpret_cast<const float4*>(
        p_row + (task.h + i_head) * kDeltaDim + team.i_warp * kSliceColumns + place.lane_column);
    const float b_delta[kLaneColumns] = {delta.x, delta.y, delta.z, delta.w};
    add_update(b_state, b_k, b_delta, p_row[(task.h + task.hv) * kDeltaDim + i_head]);
    p_row += task.updates_width;
  }
  store_state(place.state(task, team), b_state);
}

// The rows of this pass through one value head, by all threads of the team, to its output.
__device__ __forceinline__ void stream_delta_head(
    const DeltaTask& task, int i_head, int num_rows, const Team& team, float* p_shared) {
  using T = __half;
  const DeltaRows& rows = task.current;
  const DeltaPlace place(task, i_head, team);
  const DeltaShared shared(p_shared, num_rows);
  const int i_warp = team.i_warp;
  const int i_lane = team.i_lane;
  if (place.has_channels) {
    Pair<T> b_before[kWindow];
    load_window(task, place.channel, num_replayed_of(task), b_before);
    const Pack<T> b_weight =
        *reinterpret_cast<const Pack<T>*>(task.p_conv_weight + place.channel * kTaps);
    float* p_own = shared.p_mixed + 2 * team.i_thread;
    float b_window[2][kWindow];
#pragma unroll
    for (int j = 0; j < kWindow; ++j) {
      b_window[0][j] = to_float(b_before[j].v[0]);
      b_window[1][j] = to_float(b_before[j].v[1]);
    }
#pragma unroll 1
    for (int i = 0; i < num_rows; ++i) {
      const uint32_t word = receive_halves(rows.p_qkv + i * rows.qkv_row_stride + place.channel);
      *reinterpret_cast<uint32_t*>(p_own + i * kMixedStride) = word;
      convolve_rows<1>(b_weight, b_window,
                       reinterpret_cast<const Pair<T>*>(p_own + i * kMixedStride), 0,
                       p_own + i * kMixedStride, kMixedStride);
    }
  } else if (place.i_gate < num_rows) {
    const int i = place.i_gate;
    shared.p_decay[i] =
        decay_and_beta(to_float(receive_half(rows.p_a + i * rows.a_row_stride + i_head)),
                       to_float(receive_half(rows.p_b + i * rows.b_row_stride + i_head)),
                       {-expf(task.p_a_log[i_head]), task.p_dt_bias[i_head]});
  }
  // The output gate of this warp's row: lane l makes values 4 l .. 4 l + 3.
  if (i_warp < num_rows) {
    const T* p_z = task.p_z + i_warp * task.z_row_stride + i_head * kDeltaDim + 4 * i_lane;
    const float4 weight = reinterpret_cast<const float4*>(task.p_norm_weight)[i_lane];
    const uint32_t words[2] = {receive_halves(p_z), receive_halves(p_z + 2)};
    const float2 lower = __half22float2(*reinterpret_cast<const __half2*>(&words[0]));
    const float2 upper = __half22float2(*reinterpret_cast<const __half2*>(&words[1]));
    float* p_gate = shared.p_gate + i_warp * kDeltaDim + 4 * i_lane;
    p_gate[0] = weight.x * silu_fast(lower.x);
    p_gate[1] = weight.y * silu_fast(lower.y);
    p_gate[2] = weight.z * silu_fast(upper.x);
    p_gate[3] = weight.w * silu_fast(upper.y);
  }
  float b_state[kLaneRows][kLaneColumns];
  load_state(place.state(task, team), b_state);
  sync_team(team);
  if (i_warp < num_rows) {
    shared.find_norms(i_warp, i_lane);
  }
  sync_team(team);
#pragma unroll 1
  for (int i = 0; i < num_rows; ++i) {
    float* p_row = shared.p_mixed + i * kMixedStride;
    const float made = delta_step(b_state, p_row + place.lane_row, p_row[place.value(team)],
                                  shared.p_decay[i], shared.p_norms[i], i_lane);
    p_row[place.value(team) + (i_lane < kWarp / 2 ? kDeltaDim : 0)] = made;
  }
  sync_team(team);
  if (i_warp < num_rows) {
    const float* p_o = shared.p_mixed + i_warp * kMixedStride + 2 * kDeltaDim;
    const float part = i_lane < kSlices ? sum_of_squares(p_o + i_lane * kSliceColumns) : 0.0f;
    float b_parts[kSlices];
#pragma unroll
    for (int j = 0; j < kSlices; ++j) {
      b_parts[j] = __shfl_sync(kAllLanes, part, j);
    }
    const float sum = ((b_parts[0] + b_parts[1]) + (b_parts[2] + b_parts[3])) +
                      ((b_parts[4] + b_parts[5]) + (b_parts[6] + b_parts[7]));
    const float inverse_rms = rsqrtf(fmaf(sum, 1.0f / kDeltaDim, task.eps));
    const float4 o = reinterpret_cast<const float4*>(p_o)[i_lane];
    const float* b_gate = shared.p_gate + i_warp * kDeltaDim + 4 * i_lane;
    T* p_out = task.p_out + i_warp * task.out_row_stride + i_head * kDeltaDim + 4 * i_lane;
    const __half2 lower = __halves2half2(from_float<T>(o.x * inverse_rms * b_gate[0]),
                                         from_float<T>(o.y * inverse_rms * b_gate[1]));
    const __half2 upper = __halves2half2(from_float<T>(o.z * inverse_rms * b_gate[2]),
                                         from_float<T>(o.w * inverse_rms * b_gate[3]));
    store_relaxed_4(p_out, *reinterpret_cast<const uint32_t*>(&lower));
    store_relaxed_4(p_out + 2, *reinterpret_cast<const uint32_t*>(&upper));
    // What a later pass replays; k by one of the value heads of a key head.
    const auto* p_quads =
        reinterpret_cast<const float4*>(shared.p_mixed + i_warp * kMixedStride) + i_lane;
    float* p_update = task.p_updates + i_warp * task.updates_row_stride;
    if (i_head % task.ratio == 0) {
      reinterpret_cast<float4*>(p_update + place.i_key * kDeltaDim)[i_lane] =
          p_quads[kDeltaDim / 4];
    }
    reinterpret_cast<float4*>(p_update + (task.h + i_head) * kDeltaDim)[i_lane] =
        p_quads[3 * kDeltaDim / 4];
    if (i_lane == 0) {
      p_update[(task.h + task.hv) * kDeltaDim + i_head] = shared.p_decay[i_warp].x;
    }
  }
  sync_team(team);  // the memory is the next op's
}

// Calls run(i_head) for this team's heads. They go to one team of a block, from the last block on:
// dense products begin at the first.
template <typename Run>
__device__ __forceinline__ void for_heads(const DeltaTask& task, const Team& team, Run run) {
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
    run(i_head);
  }
}

}  // namespace bytebound
