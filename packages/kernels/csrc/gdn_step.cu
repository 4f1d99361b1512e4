// The Gated DeltaNet step: one cluster of 8 blocks per key head, one kernel per layer and pass.
//
//   value heads of the key head      state S of one value head, [K, V] = 128 x 128
//   +------+------+------+             V:  | 16 | 16 | 16 | 16 | 16 | 16 | 16 | 16 |
//   |  0   |  1   |  2   |          block:    0    1    2    3    4    5    6    7
//   +------+------+------+
//   a block: 16 columns (a slice) of every value head, a warp for each, and three warps that only
//            help with what is done before and after
//
//   a warp's 128 x 16 piece of S, in registers for all rows of the pass:
//     lane 4 g + p (p < 4) holds columns 4 p .. 4 p + 3 of rows 32 j + 4 g + i (i < 4, j < 4)
//
// So the sums over K are 16 terms in a thread and three shuffles over g, and no barrier stands
// between two rows. Accepted rows of the pass before need no sums: their k, their delta and their
// decay were kept, and S takes them in while the spare warps prepare this pass's rows. What does
// not depend on S is done before, for all rows:
//
//   channels      a thread takes two of them through the convolution of all rows
//   norms, q . k  a warp takes a row
//   gates         a thread takes a row of a value head
//
// and the output's part comes along with what S needs:
//
//   o = S_new^T q = decay (S^T q) + (k . q) d,   so both products are taken with the old S.
//
// The norm over V needs all 8 slices: each block sends its sums of squares to all blocks of the
// cluster, into a mailbox, and everyone adds them in the same order. Every block convolves q and k
// for itself, so window and pending rows are written when all of the cluster have read them.
//
// It costs: q and k are convolved 8 times, and a row takes some 200 instructions of every warp, one
// after the other. With one row the state's way from and to memory is what remains.
//
// Before sm_90 one block does it all: it walks the slices, and the cluster is the block. It runs
// there, but is not tuned: H blocks are few.
#include "gdn_step.h"

#include "cuda/async_copy.cuh"
#include "cuda/cluster.cuh"
#include "cuda/delta_rule.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/dynamic_shared.cuh"
#include "cuda/gdn_rows.cuh"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"
#include "cuda/streamed.cuh"

namespace bytebound {
namespace {

constexpr int kMaxItemWarps = 3;          // at once; more are walked
constexpr int kSpareThreads = 3 * kWarp;  // without a piece of S
constexpr int kMaxThreads = kMaxItemWarps * kWarp + kSpareThreads;
constexpr int kKeyPairs = kDeltaDim;            // pairs of channels of q and of k together
constexpr int kValuePairs = kSliceColumns / 2;  // of an item
constexpr int kMessage = 4;  // value heads whose sums go to another block at once
constexpr int kMaxSharedBytes = 96 << 10;

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
struct Pending {
  T* p_qkv;  // null: there are none and none are kept
  float* p_updates;
  int updates_width;
  int rows;
};

template <typename T>
struct KernelArgs {
  Rows<T> current;
  Pending<T> pending;
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
  int ratio;  // value heads of one key head
  float eps;
  bool commit;
  bool state_settled;
};

// Shared memory, in floats from its start. An item is one slice of one value head.
struct Layout {
  int row_stride;      // of mixed
  int mixed;           // [current][q 128 | k 128 | v 16 per item]; o replaces v
  int kept_stride;     // of kept
  int kept;            // [pending][k 128 | delta 16 per item | decay per value head]
  int inputs;          // [pending + current][pairs] of Pair
  int norms;           // [current] of KeyNorms
  int squares;         // [current][kSlices][squares_stride], sums over the columns of a slice
  int squares_stride;  // value heads, in whole messages
  int decay;           // [current][ratio][decay, beta]
  int window;          // [pairs][kWindow] of Pair, the window to be written
  int end;
};

__host__ __device__ inline Layout layout_of(int pending, int current, int items, int ratio) {
  Layout l;
  const int columns = kSliceColumns * items;
  const int pairs = kKeyPairs + columns / 2;
  l.squares_stride = (ratio + kMessage - 1) / kMessage * kMessage;
  l.row_stride = 2 * kDeltaDim + columns;
  l.mixed = 0;
  l.kept_stride = kDeltaDim + columns + l.squares_stride;
  l.kept = l.mixed + current * l.row_stride;
  l.norms = l.kept + pending * l.kept_stride;
  l.squares = l.norms + current * static_cast<int>(sizeof(KeyNorms) / sizeof(float));
  l.decay = l.squares + current * kSlices * l.squares_stride;
  l.inputs = l.decay + current * ratio * 2;
  l.window = l.inputs + (pending + current) * pairs;
  l.end = l.window + pairs * kWindow;
  return l;
}

// Where a block's items lie. It has `ratio` items per slice, and every kRanks-th slice.
constexpr int kRanks = kHasClusters ? kSlices : 1;  // blocks of a cluster

struct Item {
  int i_head;   // of the value heads of the key head
  int i_slice;  // of V
};

__device__ __forceinline__ Item item_of(int i_item, int rank, int ratio) {
  return kRanks == kSlices ? Item{i_item, rank}
                           : Item{i_item % ratio, rank + i_item / ratio * kRanks};
}

// Where a block's pair of channels lies: its first channel.
__device__ __forceinline__ int channel_of(int i_pair, int i_key, int rank, int h, int ratio) {
  if (i_pair < kKeyPairs / 2) {
    return i_key * kDeltaDim + 2 * i_pair;
  }
  if (i_pair < kKeyPairs) {
    return (h + i_key) * kDeltaDim + 2 * i_pair - kDeltaDim;
  }
  const int column = 2 * (i_pair - kKeyPairs);
  const Item item = item_of(column / kSliceColumns, rank, ratio);
  const int i_head = i_key * ratio + item.i_head;
  return (2 * h + i_head) * kDeltaDim + item.i_slice * kSliceColumns + column % kSliceColumns;
}

// Begins to copy the inputs of two channels, a row of pairs after the other.
template <typename T>
__device__ __forceinline__ void copy_inputs(
    Pair<T>* p_to, int to_stride, const T* p_from, std::int64_t from_stride, int rows) {
#pragma unroll 1
  for (int i = 0; i < rows; ++i) {
    async_copy_4(shared_address(p_to), p_from);
    p_from += from_stride;
    p_to += to_stride;
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads, 2) gdn_step_kernel(const KernelArgs<T> args) {
  BYTEBOUND_DYNAMIC_SHARED(float4, shared);
  __shared__ Mailbox mailbox;
  __shared__ float4 tokens[kSlices];  // sent if there is nothing else to send
  // Measured in whole steps: with several rows it pays to start the next kernel when they begin,
  // with one row at once, for the sake of its first weights.
  const bool allows_early = args.current.rows <= 1;
  if (allows_early) {
    allow_next_kernel();
  }
  float* p_shared = reinterpret_cast<float*>(shared);
  const int i_thread = threadIdx.x;
  const int ratio = args.ratio;
  const int num_rows = args.current.rows;
  const int row_messages = (ratio + kMessage - 1) / kMessage;
  if (i_thread == 0) {
    const int num_messages = max(1, num_rows * row_messages);  // from each block
    open_mailbox(&mailbox, kRanks * num_messages * sizeof(float4));
  }

  const int rank = static_cast<int>(cluster_rank());
  const int i_key = blockIdx.x / kRanks;
  const int num_items = ratio * (kSlices / kRanks);
  const int num_value_pairs = num_items * kValuePairs;
  const int num_pairs = kKeyPairs + num_value_pairs;
  const int num_threads = blockDim.x;
  const int num_warps = num_threads / kWarp;
  const int i_lane = i_thread % kWarp;
  const int i_warp = i_thread / kWarp;
  const Layout layout = layout_of(args.pending.rows, args.current.rows, num_items, ratio);
  const int row_stride = layout.row_stride;

  // The lane's piece of an item's state. The spare warps have none.
  const int lane_row = i_lane / kColumnLanes * kRun;
  const int lane_column = i_lane % kColumnLanes * kLaneColumns;
  const int num_item_warps = (num_threads - kSpareThreads) / kWarp;
  const int first_item = i_warp;
  const bool has_state = first_item < num_item_warps;
  const auto state_of = [&](const Item& item) {
    const std::int64_t i_head = i_key * ratio + item.i_head;
    return args.p_state + (i_head * kDeltaDim + lane_row) * kDeltaDim +
           item.i_slice * kSliceColumns + lane_column;
  };
  Item item = item_of(first_item, rank, ratio);
  float* p_state = state_of(item);

  // The first value of a pair of the block's values, within a row of z and out.
  const auto o_value_of = [&](int i_pair) {
    const Item place = item_of(i_pair / kValuePairs, rank, ratio);
    return (i_key * ratio + place.i_head) * kDeltaDim + place.i_slice * kSliceColumns +
           2 * (i_pair % kValuePairs);
  };
  const auto norm_weight_of = [&](int o_value) {
    const float* p = args.p_norm_weight + o_value % kDeltaDim;
    return make_float2(p[0], p[1]);
  };
  const auto load_z = [&](int i_row, int o_value) {
    return *reinterpret_cast<const Pair<T>*>(args.p_z + i_row * args.z_row_stride + o_value);
  };

  // A gate is one row of one value head; they are dealt from the last thread on, which has no
  // channels. A row of values is dealt to a warp.
  const auto head_gates_of = [&](int i_head) {
    return HeadGates{-expf(args.p_a_log[i_head]), args.p_dt_bias[i_head]};
  };
  const int first_gate = num_threads - 1 - i_thread;
  const int first_channel = channel_of(i_thread, i_key, rank, args.h, ratio);
  const bool has_channels = i_thread < num_pairs;
  const int first_value = o_value_of(i_lane);
  const bool has_values = i_warp < num_rows && i_lane < num_value_pairs;
  struct GateInputs {
    const T* p_a;
    const T* p_b;
  };
  const auto gate_inputs_of = [&](int i_gate) {
    const int i_row = i_gate / ratio;
    const int i_head = i_key * ratio + i_gate % ratio;
    return GateInputs{args.current.p_a + i_row * args.current.a_row_stride + i_head,
                      args.current.p_b + i_row * args.current.b_row_stride + i_head};
  };
  const bool has_gate = first_gate < num_rows * ratio;
  const GateInputs first_inputs = has_gate ? gate_inputs_of(first_gate) : GateInputs{};

  const Pending<T>& pending = args.pending;
  const int channels = (2 + ratio) * args.h * kDeltaDim;
  const int updates_width = pending.updates_width;
  // Within a row of updates.
  const int o_k = i_key * kDeltaDim;
  const auto o_delta_of = [&](const Item& place) {
    return (args.h + i_key * ratio + place.i_head) * kDeltaDim + place.i_slice * kSliceColumns;
  };
  const int o_decay = (1 + ratio) * args.h * kDeltaDim + i_key * ratio;
  auto* p_inputs = reinterpret_cast<Pair<T>*>(p_shared + layout.inputs);
  auto* p_current_inputs = p_inputs + pending.rows * num_pairs;
  float* p_kept = p_shared + layout.kept;

  if (!args.state_settled) {
    wait_for_previous_kernel();
  }
  float b_state[kLaneRows][kLaneColumns] = {};
  if (has_state) {
    load_state(p_state, b_state);
  }
  ConvPair<T> b_conv = {};
  if (has_channels) {
    b_conv = load_conv_pair(args.p_conv_weight, args.p_conv_window, first_channel);
  }
  // Pending rows come before it is known how many count.
  if (pending.rows > 0) {
#pragma unroll 1
    for (int i_pair = i_thread; i_pair < num_pairs; i_pair += num_threads) {
      const int channel = channel_of(i_pair, i_key, rank, args.h, ratio);
      copy_inputs(p_inputs + i_pair, num_pairs, pending.p_qkv + channel, channels, pending.rows);
    }
    constexpr int kPackets = 4;  // floats of a copy
    const int row_packets = (kDeltaDim + num_items * kSliceColumns) / kPackets;
#pragma unroll 1
    for (int i = i_thread; i < pending.rows * row_packets; i += num_threads) {
      const int i_row = i / row_packets;
      const int column = i % row_packets * kPackets;
      int o_from = o_k + column;
      if (column >= kDeltaDim) {
        const int i_value = column - kDeltaDim;
        o_from =
            o_delta_of(item_of(i_value / kSliceColumns, rank, ratio)) + i_value % kSliceColumns;
      }
      async_copy_16(shared_address(p_kept + i_row * layout.kept_stride + column),
                    pending.p_updates + i_row * updates_width + o_from);
    }
    for (int i = i_thread; i < pending.rows * ratio; i += num_threads) {
      const int i_row = i / ratio;
      async_copy_4(shared_address(p_kept + i_row * layout.kept_stride + kDeltaDim +
                                  num_items * kSliceColumns + i % ratio),
                   pending.p_updates + i_row * updates_width + o_decay + i % ratio);
    }
  }
  float2 b_norm_weight = {};
  if (has_values) {
    b_norm_weight = norm_weight_of(first_value);
  }
  HeadGates b_gates = {};
  if (has_gate) {
    b_gates = head_gates_of(i_key * ratio + first_gate % ratio);
    prefetch_to_l2(first_inputs.p_a);
    prefetch_to_l2(first_inputs.p_b);
  }
  wait_for_previous_kernel();

  int num_replayed = 0;
  if (pending.rows > 0) {
    num_replayed = min(max(*args.p_num_accepted, 0), pending.rows);
  }
  T b_a = {};
  T b_b = {};
  if (has_gate) {
    b_a = *first_inputs.p_a;
    b_b = *first_inputs.p_b;
  }
  Pair<T> b_z = {};
  if (has_values) {
    b_z = load_z(i_warp, first_value);
  }

#pragma unroll 1
  for (int i_pair = i_thread; i_pair < num_pairs; i_pair += num_threads) {
    int channel = first_channel;
    if (i_pair != i_thread) {
      channel = channel_of(i_pair, i_key, rank, args.h, ratio);
      b_conv = load_conv_pair(args.p_conv_weight, args.p_conv_window, channel);
    }
    copy_inputs(p_current_inputs + i_pair, num_pairs, args.current.p_qkv + channel,
                args.current.qkv_row_stride, num_rows);
    float b_window[2][kWindow];
#pragma unroll
    for (int i = 0; i < 2 * kWindow; ++i) {
      b_window[i / kWindow][i % kWindow] = to_float(b_conv.window[i / 2].v[i % 2]);
    }
    async_copy_wait();
    auto* p_next = reinterpret_cast<Pair<T>*>(p_shared + layout.window) + i_pair * kWindow;
    skip_rows(num_replayed, b_window, p_inputs + i_pair, num_pairs);
    if (!args.commit) {
      keep_window(b_window, p_next);
    }
    convolve(b_conv.weight, num_rows, b_window, p_current_inputs + i_pair, num_pairs,
             p_shared + layout.mixed + 2 * i_pair, row_stride);
    if (args.commit) {
      keep_window(b_window, p_next);
    }
  }
  async_copy_wait();  // of threads without channels
  // This block may be sent to, and has read what another one may write.
  cluster_arrive();
  __syncthreads();

  for (int i = first_gate; i < num_rows * ratio; i += num_threads) {
    if (i != first_gate) {
      b_gates = head_gates_of(i_key * ratio + i % ratio);
      const GateInputs inputs = gate_inputs_of(i);
      b_a = *inputs.p_a;
      b_b = *inputs.p_b;
    }
    reinterpret_cast<float2*>(p_shared + layout.decay)[i] =
        decay_and_beta(to_float(b_a), to_float(b_b), b_gates);
  }
  auto* p_norms = reinterpret_cast<KeyNorms*>(p_shared + layout.norms);
#pragma unroll 1
  for (int i_row = i_warp - num_item_warps; i_row >= 0 && i_row < num_rows;
       i_row += kSpareThreads / kWarp) {
    const KeyNorms norms = key_norms(p_shared + layout.mixed + i_row * row_stride + 4 * i_lane);
    if (i_lane == 0) {
      p_norms[i_row] = norms;
    }
  }
  const bool is_written = args.commit ? num_rows > 0 : num_replayed > 0;
  const auto replay = [&](int i_item) {
#pragma unroll 1
    for (int i_row = 0; i_row < num_replayed; ++i_row) {
      const float* p_row = p_kept + i_row * layout.kept_stride;
      float b_k[kLaneRows];
      load_keys(p_row + lane_row, b_k);
      const float* p_delta = p_row + kDeltaDim + i_item * kSliceColumns + lane_column;
      const float4 delta = *reinterpret_cast<const float4*>(p_delta);
      const float b_delta[kLaneColumns] = {delta.x, delta.y, delta.z, delta.w};
      add_update(b_state, b_k, b_delta, p_row[kDeltaDim + num_items * kSliceColumns + item.i_head]);
    }
    if (!args.commit && is_written) {
      store_state(p_state, b_state);
    }
  };
  if (has_state) {
    replay(first_item);
  }
  const float2 first_out_gate = make_float2(b_norm_weight.x * silu_fast(to_float(b_z.v[0])),
                                            b_norm_weight.y * silu_fast(to_float(b_z.v[1])));
  __syncthreads();

  if (!allows_early) {
    allow_next_kernel();
  }
  // While the others go through the rows, the spare warps write what the next pass will read: each
  // block its own columns of v, and a share of q and k.
  const bool keeps = pending.p_qkv != nullptr;
  if (!has_state && (is_written || keeps)) {
    cluster_wait();
    const int i_spare = i_thread - num_item_warps * kWarp;
#pragma unroll 1
    for (int i_pair = i_spare; i_pair < num_pairs; i_pair += kSpareThreads) {
      if (i_pair < kKeyPairs && i_pair / kValuePairs % kRanks != rank) {
        continue;
      }
      const int channel = channel_of(i_pair, i_key, rank, args.h, ratio);
      if (is_written) {
        const auto* p_next =
            reinterpret_cast<const Pair<T>*>(p_shared + layout.window) + i_pair * kWindow;
        auto* p_window = reinterpret_cast<Pair<T>*>(args.p_conv_window + channel * kWindow);
#pragma unroll
        for (int j = 0; j < kWindow; ++j) {
          p_window[j] = p_next[j];
        }
      }
      if (keeps) {
        T* p_to = pending.p_qkv + channel;
#pragma unroll 1
        for (int i_row = 0; i_row < num_rows; ++i_row) {
          *reinterpret_cast<Pair<T>*>(p_to) = p_current_inputs[i_row * num_pairs + i_pair];
          p_to += channels;
        }
      }
    }
    if (keeps) {
      // Of k, a block the quads of its slice.
      constexpr int kQuads = kDeltaDim / 4 / kRanks;
      for (int i = i_spare; i < num_rows * kQuads; i += kSpareThreads) {
        const int i_row = i / kQuads;
        const int column = 4 * (i % kQuads + kQuads * rank);
        *reinterpret_cast<float4*>(pending.p_updates + i_row * updates_width + o_k + column) =
            *reinterpret_cast<const float4*>(p_shared + layout.mixed + i_row * row_stride +
                                             kDeltaDim + column);
      }
      for (int i = i_spare; rank == 0 && i < num_rows * ratio; i += kSpareThreads) {
        pending.p_updates[i / ratio * updates_width + o_decay + i % ratio] =
            reinterpret_cast<const float2*>(p_shared + layout.decay)[i].x;
      }
    }
  }
  for (int i_item = first_item; has_state && i_item < num_items; i_item += num_item_warps) {
    if (i_item != first_item) {
      if (args.commit && is_written) {
        store_state(p_state, b_state);
      }
      item = item_of(i_item, rank, ratio);
      p_state = state_of(item);
      load_state(p_state, b_state);
      replay(i_item);
    }
    const float* p_keys = p_shared + layout.mixed + lane_row;
    const int o_column = lane_column + i_lane / kColumnLanes % kLaneColumns;
    float* p_value = p_shared + layout.mixed + 2 * kDeltaDim + i_item * kSliceColumns + o_column;
    const float2* p_decay = reinterpret_cast<const float2*>(p_shared + layout.decay) + item.i_head;
    float* p_delta = pending.p_updates + o_delta_of(item) + o_column;
#pragma unroll 1
    for (int i_row = 0; i_row < num_rows; ++i_row) {
      const float made =
          delta_step(b_state, p_keys + i_row * row_stride, p_value[i_row * row_stride],
                     p_decay[i_row * ratio], p_norms[i_row], i_lane);
      if (i_lane >= kWarp / 2) {
        p_value[i_row * row_stride] = made;
      } else if (pending.p_qkv != nullptr) {
        p_delta[i_row * updates_width] = made;
      }
    }
  }
  if (has_state || !(is_written || keeps)) {
    cluster_wait();  // every block may be sent to
  }
  __syncthreads();

  if (num_rows == 0 && i_thread < kRanks) {
    send_to_block(tokens + rank, float4{}, &mailbox, i_thread);
  }
  const float* p_o = p_shared + layout.mixed + 2 * kDeltaDim;
  float* p_squares = p_shared + layout.squares;
#pragma unroll 1
  for (int i_row = i_warp; i_row < num_rows; i_row += num_warps) {
    float* p_row = p_squares + i_row * kSlices * layout.squares_stride;
    const float* p_row_o = p_o + i_row * row_stride;
    if constexpr (kRanks == 1) {
      for (int i_item = i_lane; i_item < num_items; i_item += kWarp) {
        const Item place = item_of(i_item, rank, ratio);
        p_row[place.i_slice * layout.squares_stride + place.i_head] =
            sum_of_squares(p_row_o + i_item * kSliceColumns);
      }
    } else {
      // Eight lanes add for one value head each; then lane i sends all four sums to block i.
#pragma unroll 1
      for (int first_head = 0; first_head < ratio; first_head += kMessage) {
        const int i_head = first_head + i_lane / kSlices;
        const float sum = i_head < ratio ? sum_of_squares(p_row_o + i_head * kSliceColumns) : 0.0f;
        float b_sums[kMessage];
#pragma unroll
        for (int j = 0; j < kMessage; ++j) {
          b_sums[j] = __shfl_sync(kAllLanes, sum, j * kSlices);
        }
        if (i_lane < kRanks) {
          send_to_block(
              reinterpret_cast<float4*>(p_row + rank * layout.squares_stride + first_head),
              make_float4(b_sums[0], b_sums[1], b_sums[2], b_sums[3]), &mailbox, i_lane);
        }
      }
    }
  }
  if (args.commit && is_written && has_state) {
    store_state(p_state, b_state);  // of the last item
  }
  wait_for_mail(&mailbox);

#pragma unroll 1
  for (int i_row = i_warp; i_row < num_rows; i_row += num_warps) {
#pragma unroll 1
    for (int i_pair = i_lane; i_pair < num_value_pairs; i_pair += kWarp) {
      float2 gate = first_out_gate;
      int o_value = first_value;
      if (i_row != i_warp || i_pair != i_lane) {
        o_value = o_value_of(i_pair);
        const Pair<T> z = load_z(i_row, o_value);
        const float2 weight = norm_weight_of(o_value);
        gate = make_float2(weight.x * silu_fast(to_float(z.v[0])),
                           weight.y * silu_fast(to_float(z.v[1])));
      }
      const int i_head = item_of(i_pair / kValuePairs, rank, ratio).i_head;
      const float* p_parts = p_squares + i_row * kSlices * layout.squares_stride + i_head;
      float b_parts[kSlices];
#pragma unroll
      for (int j = 0; j < kSlices; ++j) {
        b_parts[j] = p_parts[j * layout.squares_stride];
      }
      const float sum = ((b_parts[0] + b_parts[1]) + (b_parts[2] + b_parts[3])) +
                        ((b_parts[4] + b_parts[5]) + (b_parts[6] + b_parts[7]));
      const float inverse_rms = rsqrtf(fmaf(sum, 1.0f / kDeltaDim, args.eps));
      const float2 o = *reinterpret_cast<const float2*>(p_o + i_row * row_stride + 2 * i_pair);
      Pair<T> b_out;
      b_out.v[0] = from_float<T>(o.x * inverse_rms * gate.x);
      b_out.v[1] = from_float<T>(o.y * inverse_rms * gate.y);
      *reinterpret_cast<Pair<T>*>(args.p_out + i_row * args.out_row_stride + o_value) = b_out;
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
  args.pending = {static_cast<T*>(p.pending.qkv), p.pending.updates,
                  static_cast<int>(gdn_updates_width(p.h, p.hv)), static_cast<int>(p.pending.rows)};
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
  const dim3 block(kWarp * (items < kMaxItemWarps ? items : kMaxItemWarps) + kSpareThreads);
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
