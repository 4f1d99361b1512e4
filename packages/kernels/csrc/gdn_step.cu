// The Gated DeltaNet step: one cluster of 8 blocks per key head, one kernel per layer and pass.
//
//   value heads of the key head      state S of one value head, [K, V] = 128 x 128
//   +------+------+------+             V:  | 16 | 16 | 16 | 16 | 16 | 16 | 16 | 16 |
//   |  0   |  1   |  2   |          block:    0    1    2    3    4    5    6    7
//   +------+------+------+
//   a block: 16 columns (a slice) of every value head; two warps per value head, 8 columns each
//
//   a warp's 128 x 8 piece of S, in registers for all rows of the pass:
//     lane 2 g + p holds rows 8 g .. 8 g + 7 (g of 16) of columns 4 p .. 4 p + 3 (p of 2)
//
// So the sums over K are 8 terms in a thread and four shuffles over g, and no barrier stands
// between two rows. What is convolved goes through shared memory once: a thread takes two channels
// through all rows. Norms of q and k are sums over K as well and come along with S^T k and S^T q:
//
//   o = S_new^T q = decay (S^T q) + (k . q) d,   so both products are taken with the old S.
//
// The norm over V needs all 8 slices: each warp sends its sum of squares to all blocks of the
// cluster, and one cluster barrier later everyone adds them in the same order. Behind that barrier
// the window is written too, since every block convolves q and k for itself.
//
// It costs: q and k are convolved 8 times, and a row takes some 300 instructions of every warp, one
// after the other. With one row the state's way from and to memory is what remains.
//
// Before sm_90 one block does it all: it walks the slices, and the cluster is the block. It runs
// there, but is not tuned: H blocks are few.
#include "gdn_step.h"

#include <type_traits>

#include "cuda/chunk.cuh"
#include "cuda/cluster.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"

namespace bytebound {
namespace {

constexpr int kHeadDim = static_cast<int>(kGdnHeadDim);
constexpr int kMaxRows = static_cast<int>(kGdnMaxRows);
constexpr int kTaps = 4;
constexpr int kWindow = kTaps - 1;
constexpr int kSlices = 8;                                 // of V
constexpr int kSliceColumns = kHeadDim / kSlices;          // 16
constexpr int kQuad = 4;                                   // columns of a lane
constexpr int kWarpColumns = 2 * kQuad;                    // 8
constexpr int kSliceWarps = kSliceColumns / kWarpColumns;  // 2
constexpr int kLaneRows = kHeadDim / (kWarp / 2);          // 8 rows of S in a lane
constexpr int kPartials = kSlices * kSliceWarps;           // sums of squares of one value head
constexpr int kGroupThreads = kSliceWarps * kWarp;         // work on one slice of one value head
constexpr int kMaxGroups = 3;                              // at once; more are walked
constexpr int kMaxThreads = kMaxGroups * kGroupThreads;
constexpr int kKeyPairs = kHeadDim;  // pairs of channels of q and of k together
constexpr int kMaxSharedBytes = 96 << 10;
constexpr float kL2Eps = 1e-6f;
constexpr float kQueryScale = 0.08838834764831845f;  // K^-0.5

// Two neighbouring channels or columns.
template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T v[2];
};

template <typename T>
struct Rows {
  const T* p_qkv;
  const T* p_a;
  const T* p_b;
  int rows;
  std::int64_t qkv_row_stride;  // in elements
  std::int64_t a_row_stride;    // in elements
  std::int64_t b_row_stride;    // in elements
};

template <typename T>
struct KernelArgs {
  Rows<T> current;
  Rows<T> pending;
  const T* p_z;
  T* p_out;
  std::int64_t z_row_stride;    // in elements
  std::int64_t out_row_stride;  // in elements
  const std::int32_t* p_num_accepted;
  const T* p_conv_weight;
  const float* p_a_log;
  const float* p_dt_bias;
  const float* p_norm_weight;
  T* p_conv_window;
  float* p_state;
  int h;
  int ratio;      // value heads of one key head
  int num_ranks;  // blocks of a cluster
  float eps;
  bool commit;
  bool state_settled;
};

// Shared memory, in floats from its start. An item is one slice of one value head.
struct Layout {
  int row_stride;  // of mixed
  int mixed;       // [pending + current][q 128 | k 128 | v 16 per item]; o replaces v in place
  int gate;        // [current][16 per item], norm_weight * silu(z)
  int squares;     // [current][ratio][kPartials]
  int decay;       // [pending + current][ratio][decay, beta]
  int window;      // [pairs][kWindow] of Pair, the window to be written
  int end;
};

__host__ __device__ inline Layout layout_of(int pending, int current, int items, int ratio) {
  Layout l;
  const int columns = kSliceColumns * items;
  l.row_stride = 2 * kHeadDim + columns;
  l.mixed = 0;
  l.gate = l.mixed + (pending + current) * l.row_stride;
  l.squares = l.gate + current * columns;
  l.decay = l.squares + current * ratio * kPartials;
  l.window = l.decay + (pending + current) * ratio * 2;
  l.end = l.window + (kKeyPairs + columns / 2) * kWindow;
  return l;
}

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

// Where a block's pair of channels lies: its first channel.
__device__ __forceinline__ int channel_of(
    int i_pair, int i_key, int rank, int h, int ratio, int num_ranks) {
  if (i_pair < kKeyPairs / 2) {
    return i_key * kHeadDim + 2 * i_pair;
  }
  if (i_pair < kKeyPairs) {
    return (h + i_key) * kHeadDim + 2 * i_pair - kHeadDim;
  }
  const int column = 2 * (i_pair - kKeyPairs);
  const int i_item = column / kSliceColumns;
  const int i_slice = rank + i_item / ratio * num_ranks;
  const int i_head = i_key * ratio + i_item % ratio;
  return (2 * h + i_head) * kHeadDim + i_slice * kSliceColumns + column % kSliceColumns;
}

// Taps and inputs of two channels.
template <typename T>
struct ConvPair {
  Pack<T> weight;           // [2][kTaps]
  Pair<T> window[kWindow];  // [2][kWindow], flat
};

template <typename T>
__device__ __forceinline__ ConvPair<T> load_conv_pair(const KernelArgs<T>& args, int channel) {
  ConvPair<T> b_pair;
  b_pair.weight = *reinterpret_cast<const Pack<T>*>(args.p_conv_weight + channel * kTaps);
  const auto* p_window = reinterpret_cast<const Pair<T>*>(args.p_conv_window + channel * kWindow);
#pragma unroll
  for (int j = 0; j < kWindow; ++j) {
    b_pair.window[j] = p_window[j];
  }
  return b_pair;
}

template <typename T>
__device__ __forceinline__ void load_inputs(const Rows<T>& rows,
                                            int channel,
                                            Pair<T> (&b_inputs)[kMaxRows]) {
#pragma unroll
  for (int i = 0; i < kMaxRows; ++i) {
    if (i < rows.rows) {
      b_inputs[i] =
          *reinterpret_cast<const Pair<T>*>(rows.p_qkv + i * rows.qkv_row_stride + channel);
    }
  }
}

// Takes two channels through `count` rows, from p_mixed on; moves the window along.
template <typename T>
__device__ __forceinline__ void convolve(const Pack<T>& weight,
                                         const Pair<T> (&b_inputs)[kMaxRows],
                                         int count,
                                         float (&b_window)[2][kWindow],
                                         float* p_mixed,
                                         int row_stride) {
#pragma unroll
  for (int i = 0; i < kMaxRows; ++i) {
    if (i < count) {
      float2 b_mixed;
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
        (c == 0 ? b_mixed.x : b_mixed.y) = silu(sum);
      }
      *reinterpret_cast<float2*>(p_mixed + i * row_stride) = b_mixed;
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

struct HeadGates {
  float a_log;
  float dt_bias;
};

template <typename T>
__device__ __forceinline__ float2
decay_and_beta(const Rows<T>& rows, int i_row, int i_head, HeadGates gates) {
  const float x = to_float(rows.p_a[i_row * rows.a_row_stride + i_head]) + gates.dt_bias;
  const float b = to_float(rows.p_b[i_row * rows.b_row_stride + i_head]);
  const float softplus = x > 20.0f ? x : log1pf(expf(x));
  return {expf(-expf(gates.a_log) * softplus), sigmoid(b)};
}

__device__ __forceinline__ void load_state(const float* p_state,
                                           float (&b_state)[kLaneRows][kQuad]) {
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    const float4 b_row = __ldcg(reinterpret_cast<const float4*>(p_state + i * kHeadDim));
    b_state[i][0] = b_row.x;
    b_state[i][1] = b_row.y;
    b_state[i][2] = b_row.z;
    b_state[i][3] = b_row.w;
  }
}

__device__ __forceinline__ void store_state(float* p_state,
                                            const float (&b_state)[kLaneRows][kQuad]) {
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    *reinterpret_cast<float4*>(p_state + i * kHeadDim) =
        make_float4(b_state[i][0], b_state[i][1], b_state[i][2], b_state[i][3]);
  }
}

// One step of adding over lanes while halving the number of values: of a lower and an upper half,
// a lane keeps the one of its side and sends the other.
template <int kHalf>
__device__ __forceinline__ void add_halves(const float* b_in,
                                           float* b_out,
                                           int distance,
                                           bool upper) {
#pragma unroll
  for (int j = 0; j < kHalf; ++j) {
    const float kept = upper ? b_in[kHalf + j] : b_in[j];
    const float sent = upper ? b_in[j] : b_in[kHalf + j];
    b_out[j] = __fadd_rn(kept, __shfl_xor_sync(kAllLanes, sent, distance));
  }
}

__device__ __forceinline__ float add_across(float value, int distance) {
  return __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, distance));
}

// One row through a warp's piece of S. p_keys: this lane's 8 values of q, with those of k 128
// further on; v: of the column (lane / 4) % 4 of the lane's quad. With kOut lanes 16 to 31 return o
// of that column, each value twice (lane and lane ^ 2). Every operation that S depends on is
// written out, so that S has the same bits with and without kOut.
template <bool kOut>
__device__ __forceinline__ float step(float (&b_state)[kLaneRows][kQuad],
                                      const float* p_keys,
                                      float v,
                                      float decay,
                                      float beta,
                                      int i_lane) {
  float b_k[kLaneRows];
  float b_q[kLaneRows];
#pragma unroll
  for (int i = 0; i < kLaneRows; i += 4) {
    const float4 k4 = *reinterpret_cast<const float4*>(p_keys + kHeadDim + i);
    b_k[i] = k4.x, b_k[i + 1] = k4.y, b_k[i + 2] = k4.z, b_k[i + 3] = k4.w;
    if (kOut) {
      const float4 q4 = *reinterpret_cast<const float4*>(p_keys + i);
      b_q[i] = q4.x, b_q[i + 1] = q4.y, b_q[i + 2] = q4.z, b_q[i + 3] = q4.w;
    }
  }

  float b_sums[2 * kQuad] = {};  // S^T k, then S^T q
  float qq = 0.0f;
  float kk = 0.0f;
  float qk = 0.0f;
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    kk = fmaf(b_k[i], b_k[i], kk);
#pragma unroll
    for (int c = 0; c < kQuad; ++c) {
      b_sums[c] = fmaf(b_k[i], b_state[i][c], b_sums[c]);
    }
    if (kOut) {
      qq = fmaf(b_q[i], b_q[i], qq);
      qk = fmaf(b_q[i], b_k[i], qk);
#pragma unroll
      for (int c = 0; c < kQuad; ++c) {
        b_sums[kQuad + c] = fmaf(b_q[i], b_state[i][c], b_sums[kQuad + c]);
      }
    }
  }

  float b_four[4];
  float b_two[2];
  float sum;  // over K: S^T k in lanes 0 to 15, S^T q in the others
  add_halves<4>(b_sums, b_four, 16, i_lane & 16);
  add_halves<2>(b_four, b_two, 8, i_lane & 8);
  add_halves<1>(b_two, &sum, 4, i_lane & 4);
  sum = add_across(sum, 2);

  if (kOut) {
    // Both lanes of a pair have the same rows: the even one adds q . q and k . k, the odd one q .
    // k.
    const float b_both[2] = {i_lane & 1 ? qk : qq, kk};
    float norm;
    add_halves<1>(b_both, &norm, 16, i_lane & 16);
    norm = add_across(add_across(add_across(norm, 8), 4), 2);
    qq = __shfl_sync(kAllLanes, norm, 0);
    qk = __shfl_sync(kAllLanes, norm, 1);
    kk = __shfl_sync(kAllLanes, norm, 16);
  } else {
    kk = add_across(add_across(add_across(add_across(kk, 16), 8), 4), 2);
  }
  const float inverse_k = rsqrtf(__fadd_rn(kk, kL2Eps));

  // d, times the norm's factor of k, so that k itself can stay as it is. Valid in lanes 0 to 15.
  const float missing = fmaf(-__fmul_rn(decay, inverse_k), sum, v);
  const float delta = __fmul_rn(__fmul_rn(inverse_k, beta), missing);
#pragma unroll
  for (int c = 0; c < kQuad; ++c) {
    const float column_delta = __shfl_sync(kAllLanes, delta, 4 * c + (i_lane & 1));
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      b_state[i][c] = fmaf(b_k[i], column_delta, __fmul_rn(decay, b_state[i][c]));
    }
  }
  if (!kOut) {
    return 0.0f;
  }
  const float own_delta = __shfl_sync(kAllLanes, delta, i_lane & 15);
  const float scale = rsqrtf(__fadd_rn(qq, kL2Eps)) * kQueryScale;
  return __fmul_rn(scale, fmaf(qk, own_delta, __fmul_rn(decay, sum)));
}

// Where a block's items and pairs of values lie. A block has `ratio` items per slice, and every
// num_ranks-th slice.
struct Place {
  int i_head;   // of the value heads of the key head
  int i_slice;  // of V
  int i_row;    // of the pass
  int i_pair;   // within the block's values of a row
  int o_value;  // the pair's first value, within a row of z and out
};

template <typename T>
__global__ void __launch_bounds__(kMaxThreads, 2) gdn_step_kernel(const KernelArgs<T> args) {
  extern __shared__ float4 shared[];
  float* p_shared = reinterpret_cast<float*>(shared);
  cluster_arrive_relaxed();

  const int rank = static_cast<int>(cluster_rank());
  const int ratio = args.ratio;
  const int i_key = blockIdx.x / args.num_ranks;
  const int num_items = ratio * (kSlices / args.num_ranks);
  const int num_z_pairs = num_items * (kSliceColumns / 2);  // of a row
  const int num_pairs = kKeyPairs + num_z_pairs;
  const int num_z = args.current.rows * num_z_pairs;
  const int i_thread = threadIdx.x;
  const int num_threads = blockDim.x;
  const int i_lane = i_thread % kWarp;
  const Layout layout = layout_of(args.pending.rows, args.current.rows, num_items, ratio);
  const int row_stride = layout.row_stride;

  const auto place_of_item = [&](int i_item) {
    return Place{i_item % ratio, rank + i_item / ratio * args.num_ranks, 0, 0, 0};
  };
  const auto place_of_values = [&](int i) {
    const int i_row = i / num_z_pairs;
    const int i_pair = i - i_row * num_z_pairs;
    Place place = place_of_item(2 * i_pair / kSliceColumns);
    place.i_row = i_row;
    place.i_pair = i_pair;
    place.o_value = (i_key * ratio + place.i_head) * kHeadDim + place.i_slice * kSliceColumns +
                    2 * i_pair % kSliceColumns;
    return place;
  };
  const auto norm_weight_of = [&](const Place& place) {
    const float* p = args.p_norm_weight + place.o_value % kHeadDim;
    return make_float2(p[0], p[1]);
  };
  const auto load_z = [&](const Place& place) {
    return *reinterpret_cast<const Pair<T>*>(args.p_z + place.i_row * args.z_row_stride +
                                             place.o_value);
  };
  const auto head_gates_of = [&](int i_head) {
    return HeadGates{args.p_a_log[i_head], args.p_dt_bias[i_head]};
  };

  // The lane's piece of an item's state.
  const int i_half = i_thread / kWarp % kSliceWarps;
  const int lane_row = i_lane / 2 * kLaneRows;
  const int lane_column = i_half * kWarpColumns + i_lane % 2 * kQuad;
  const auto state_of = [&](const Place& item) {
    const std::int64_t i_head = i_key * ratio + item.i_head;
    return args.p_state + (i_head * kHeadDim + lane_row) * kHeadDim + item.i_slice * kSliceColumns +
           lane_column;
  };
  const int num_groups = num_threads / kGroupThreads;
  const int first_item = i_thread / kGroupThreads;
  Place item = place_of_item(first_item);
  float* p_state = state_of(item);

  // The values are dealt from the last thread on, and the gates from the first warp that has no
  // channels: with few rows every warp then waits for memory once.
  const int first_z = num_threads - 1 - i_thread;
  const Place first_values = place_of_values(first_z);
  const int gate_threads_before = (num_pairs + kWarp - 1) / kWarp * kWarp % num_threads;
  const int first_gate =
      i_thread - gate_threads_before + (i_thread < gate_threads_before ? num_threads : 0);

  if (!args.state_settled) {
    wait_for_previous_kernel();
  }
  float b_state[kLaneRows][kQuad];
  load_state(p_state, b_state);
  ConvPair<T> b_conv = {};
  const int first_channel = channel_of(i_thread, i_key, rank, args.h, ratio, args.num_ranks);
  if (i_thread < num_pairs) {
    b_conv = load_conv_pair(args, first_channel);
  }
  const float2 b_norm_weight = norm_weight_of(first_values);
  const HeadGates b_gates = head_gates_of(i_key * ratio + first_gate % ratio);
  allow_next_kernel();
  wait_for_previous_kernel();

  // Pending rows are loaded, and their gates computed, before it is known how many count.
  int num_replayed = 0;
  if (args.pending.rows > 0) {
    num_replayed = min(max(*args.p_num_accepted, 0), args.pending.rows);
  }
  const int first_row = args.pending.rows;  // of the current ones, in shared memory
  const int num_rows = first_row + args.current.rows;
  Pair<T> b_z = {};
  if (first_z < num_z) {
    b_z = load_z(first_values);
  }

  for (int i_pair = i_thread; i_pair < num_pairs; i_pair += num_threads) {
    int channel = first_channel;
    if (i_pair != i_thread) {
      channel = channel_of(i_pair, i_key, rank, args.h, ratio, args.num_ranks);
      b_conv = load_conv_pair(args, channel);
    }
    Pair<T> b_pending[kMaxRows];
    Pair<T> b_current[kMaxRows];
    load_inputs(args.pending, channel, b_pending);
    load_inputs(args.current, channel, b_current);
    float b_window[2][kWindow];
#pragma unroll
    for (int i = 0; i < 2 * kWindow; ++i) {
      b_window[i / kWindow][i % kWindow] = to_float(b_conv.window[i / 2].v[i % 2]);
    }
    float* p_mixed = p_shared + layout.mixed + 2 * i_pair;
    auto* p_kept = reinterpret_cast<Pair<T>*>(p_shared + layout.window) + i_pair * kWindow;
    convolve(b_conv.weight, b_pending, num_replayed, b_window, p_mixed, row_stride);
    if (!args.commit) {
      keep_window(b_window, p_kept);
    }
    convolve(b_conv.weight, b_current, args.current.rows, b_window,
             p_mixed + first_row * row_stride, row_stride);
    if (args.commit) {
      keep_window(b_window, p_kept);
    }
  }

  for (int i = first_gate; i < num_rows * ratio; i += num_threads) {
    const int i_row = i / ratio;
    const int i_head = i_key * ratio + i % ratio;
    const HeadGates b_head = i == first_gate ? b_gates : head_gates_of(i_head);
    const bool is_pending = i_row < first_row;
    reinterpret_cast<float2*>(p_shared + layout.decay)[i] =
        decay_and_beta(is_pending ? args.pending : args.current,
                       is_pending ? i_row : i_row - first_row, i_head, b_head);
  }

  for (int i = first_z; i < num_z; i += num_threads) {
    float2 b_weight = b_norm_weight;
    if (i != first_z) {
      const Place values = place_of_values(i);
      b_z = load_z(values);
      b_weight = norm_weight_of(values);
    }
    reinterpret_cast<float2*>(p_shared + layout.gate)[i] =
        make_float2(b_weight.x * silu(to_float(b_z.v[0])), b_weight.y * silu(to_float(b_z.v[1])));
  }
  __syncthreads();
  cluster_wait();  // every block has started and may be sent to

  const bool is_written = args.commit ? num_rows > 0 : num_replayed > 0;
  for (int i_item = first_item; i_item < num_items; i_item += num_groups) {
    if (i_item != first_item) {
      if (args.commit && is_written) {
        store_state(p_state, b_state);
      }
      item = place_of_item(i_item);
      p_state = state_of(item);
      load_state(p_state, b_state);
    }
    const float* p_keys = p_shared + layout.mixed + lane_row;
    float* p_value = p_shared + layout.mixed + 2 * kHeadDim + i_item * kSliceColumns + lane_column +
                     i_lane / 4 % 4;
    const float2* p_decay = reinterpret_cast<const float2*>(p_shared + layout.decay) + item.i_head;
    const auto advance = [&](int i_row, auto with_out) {
      const float2 decay_beta = p_decay[i_row * ratio];
      return step<decltype(with_out)::value>(b_state, p_keys + i_row * row_stride,
                                             p_value[i_row * row_stride], decay_beta.x,
                                             decay_beta.y, i_lane);
    };

    for (int i_row = 0; i_row < num_replayed; ++i_row) {
      advance(i_row, std::false_type{});
    }
    if (!args.commit && is_written) {
      store_state(p_state, b_state);
    }
    float* p_squares =
        p_shared + layout.squares + item.i_head * kPartials + item.i_slice * kSliceWarps + i_half;
    for (int i_row = first_row; i_row < num_rows; ++i_row) {
      const float o = advance(i_row, std::true_type{});
      if (i_lane >= 16 && !(i_lane & 2)) {
        p_value[i_row * row_stride] = o;
      }
      // Over the 8 columns of lanes 16 to 31; what the others add up is of no use.
      float squares = __fmul_rn(o, o);
      squares = add_across(add_across(add_across(squares, 8), 4), 1);
      const int i_block = i_lane - 16;
      if (i_block >= 0 && i_block < args.num_ranks) {
        store_to_block(p_squares, i_block, squares);
      }
      p_squares += ratio * kPartials;
    }
  }
  cluster_arrive();
  if (args.commit && is_written) {
    store_state(p_state, b_state);  // of the last item
  }
  cluster_wait();

  for (int i = first_z; i < num_z; i += num_threads) {
    const Place values = i == first_z ? first_values : place_of_values(i);
    const float4* p_partials = reinterpret_cast<const float4*>(
        p_shared + layout.squares + (values.i_row * ratio + values.i_head) * kPartials);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kPartials / 4; ++j) {
      const float4 b_part = p_partials[j];
      sum += (b_part.x + b_part.y) + (b_part.z + b_part.w);
    }
    const float inverse_rms = rsqrtf(fmaf(sum, 1.0f / kHeadDim, args.eps));
    const float2 gate = reinterpret_cast<const float2*>(p_shared + layout.gate)[i];
    const float2 o = *reinterpret_cast<const float2*>(p_shared + layout.mixed +
                                                      (first_row + values.i_row) * row_stride +
                                                      2 * kHeadDim + 2 * values.i_pair);
    Pair<T> b_out;
    b_out.v[0] = from_float<T>(o.x * inverse_rms * gate.x);
    b_out.v[1] = from_float<T>(o.y * inverse_rms * gate.y);
    *reinterpret_cast<Pair<T>*>(args.p_out + values.i_row * args.out_row_stride + values.o_value) =
        b_out;
  }

  if (!is_written) {
    return;
  }
  // All blocks have read the window. Each writes its own columns of v, and a share of q and k.
  for (int i_pair = i_thread; i_pair < num_pairs; i_pair += num_threads) {
    if (i_pair < kKeyPairs && i_pair / (kSliceColumns / 2) % args.num_ranks != rank) {
      continue;
    }
    const int channel = i_pair == i_thread
                            ? first_channel
                            : channel_of(i_pair, i_key, rank, args.h, ratio, args.num_ranks);
    const auto* p_kept =
        reinterpret_cast<const Pair<T>*>(p_shared + layout.window) + i_pair * kWindow;
    auto* p_window = reinterpret_cast<Pair<T>*>(args.p_conv_window + channel * kWindow);
#pragma unroll
    for (int j = 0; j < kWindow; ++j) {
      p_window[j] = p_kept[j];
    }
  }
}

template <typename T>
Rows<T> rows_of(const GdnRows& rows) {
  return {static_cast<const T*>(rows.qkv),
          static_cast<const T*>(rows.a),
          static_cast<const T*>(rows.b),
          static_cast<int>(rows.rows),
          rows.qkv_row_stride,
          rows.a_row_stride,
          rows.b_row_stride};
}

template <typename T>
Status run(const GdnStepParams& p, void* stream) {
  const int num_ranks = device_major() >= 9 ? kSlices : 1;
  const int ratio = static_cast<int>(p.hv / p.h);
  const int items = ratio * (kSlices / num_ranks);
  KernelArgs<T> args;
  args.current = rows_of<T>(p.current);
  args.pending = rows_of<T>(p.pending);
  args.p_z = static_cast<const T*>(p.z);
  args.p_out = static_cast<T*>(p.out);
  args.z_row_stride = p.z_row_stride;
  args.out_row_stride = p.out_row_stride;
  args.p_num_accepted = p.num_accepted;
  args.p_conv_weight = static_cast<const T*>(p.conv_weight);
  args.p_a_log = p.a_log;
  args.p_dt_bias = p.dt_bias;
  args.p_norm_weight = p.norm_weight;
  args.p_conv_window = static_cast<T*>(p.conv_window);
  args.p_state = p.state;
  args.h = static_cast<int>(p.h);
  args.ratio = ratio;
  args.num_ranks = num_ranks;
  args.eps = p.eps;
  args.commit = p.commit;
  args.state_settled = p.state_settled;

  LaunchOptions options;
  options.shared_bytes =
      layout_of(args.pending.rows, args.current.rows, items, ratio).end * sizeof(float);
  options.cluster = num_ranks;
  options.overlap_previous = true;
  if (options.shared_bytes > kMaxSharedBytes) {
    return kSizeOutOfRange;
  }
  const dim3 grid(static_cast<unsigned>(p.h) * num_ranks);
  const dim3 block(kGroupThreads * (items < kMaxGroups ? items : kMaxGroups));
  return launch_with(options, gdn_step_kernel<T>, grid, block, stream, args);
}

bool is_row_count(std::int64_t rows) {
  return rows >= 0 && rows <= kGdnMaxRows;
}

}  // namespace

Status gdn_step(const GdnStepParams& params, void* stream) {
  constexpr std::int64_t kMaxHeads = 1 << 16;  // channel indices are 32-bit
  const bool heads_fit = params.h >= 1 && params.hv >= params.h && params.hv <= kMaxHeads &&
                         params.hv % params.h == 0 && params.hv / params.h <= kGdnMaxRatio;
  if (!heads_fit || !is_row_count(params.current.rows) || !is_row_count(params.pending.rows)) {
    return kSizeOutOfRange;
  }
  if (params.current.rows == 0 && params.pending.rows == 0) {
    return kOk;
  }
  const DeviceGuard guard(params.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  switch (params.dtype) {
    case DType::kFloat16:
      return run<__half>(params, stream);
    case DType::kBFloat16:
      return run<__nv_bfloat16>(params, stream);
    default:
      return kNotInstantiated;
  }
}

}  // namespace bytebound
