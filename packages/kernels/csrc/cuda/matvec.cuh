// A matrix times a few vectors: how the work is shared out, and how the parts are put together.
//
// The items of a matrix (a block of rows by a few columns, see the weight classes) are numbered
// along the columns first. Every warp takes an equal share of that list:
//
//            columns ->
//   rows 0   | warp 0 | warp 0 | warp 1 | warp 1 |
//   rows 1   | warp 1 | warp 2 | warp 2 | warp 2 |      8 warps make a block
//   rows 2   | warp 3 | warp 3 | warp 3 | warp 4 |
//
// The warps of a block that share a row block meet in shared memory. Blocks that share one meet in
// the workspace: each sends its sums to the block that holds the end of the row block, which adds
// up and writes. Sums run in ascending order, whoever is late, so there is one order: it depends on
// the matrix and on the number of blocks alone, not on how many activation rows there are. The
// price is a barrier and, for at most one row block of a block, one trip through the L2 cache.
//
// What is sent is its own flag: a pair of floats that no arithmetic yields marks an empty place,
// and the reader puts that mark back. So a trip needs no fence and no counter. A block waits for
// blocks of lower index only, which started earlier.
#pragma once

#include <cstdint>

#include "../matvec.h"
#include "convert.cuh"
#include "dependent.cuh"
#include "dynamic_shared.cuh"
#include "gpu_scope.cuh"
#include "reduce.cuh"
#include "seams.cuh"
#include "special_registers.cuh"

namespace bytebound {

constexpr int kMatvecThreads = kMatvecWarps * kWarp;
constexpr int kMmaPairs = 8;  // a tile's rows, as pairs (row, row + 8)

// Equal shares of a list for the warps of a grid, the larger ones spread evenly.
struct Shares {
  int num_items;
  int each;        // items of every warp that has any
  unsigned extra;  // 2^32 times the mean number of items beyond that
  int num_warps;   // that have any

  __host__ __device__ int start(int i_warp) const {
    if (i_warp >= num_warps) {
      return num_items;
    }
    const auto more = static_cast<std::uint64_t>(extra) * static_cast<unsigned>(i_warp);
    return each * i_warp + static_cast<int>(more >> 32);
  }
};

// Where finished sums go.
struct MatvecOutput {
  void* p_out;
  const void* p_residual;
  std::int64_t out_row_stride;       // in elements
  std::int64_t residual_row_stride;  // in elements
  int n;                             // output features
  bool float_out;                    // out and residual are float32, else the activations' type
  MatvecEpilogue epilogue;
  float scale;
};

template <typename Source>
struct MatvecTask {
  Source weights;
  const void* p_x;
  std::int64_t x_row_stride;  // in elements
  int num_rows;               // R, at most 8
  int num_groups;             // items along the columns
  Shares shares;
  float2* p_sent;  // workspace: [block][pair][row]
  MatvecOutput output;
};

// All bits set: a NaN that arithmetic does not yield (its NaN is 0x7fffffff).
constexpr unsigned long long kEmpty = ~0ull;

__device__ __forceinline__ float2 operator+(float2 a, float2 b) {
  return make_float2(a.x + b.x, a.y + b.y);
}

// The sum of what `count` blocks send, in their order: one each at p, p + stride and so on. All are
// asked for at once, since each answer takes a trip through the L2 cache.
__device__ __forceinline__ float2 receive_sum(float2* p, int stride, int count) {
  constexpr int kAtOnce = 4;
  float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 1
  for (; count > 0; count -= kAtOnce, p += kAtOnce * stride) {
    unsigned long long bits[kAtOnce];
    bool is_empty;
    do {
      is_empty = false;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        bits[i] = 0;
        if (i < count) {
          bits[i] = load_relaxed_8(p + i * stride);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        is_empty |= bits[i] == kEmpty;
      }
    } while (is_empty);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i < count) {
        store_relaxed_8(p + i * stride, kEmpty);
        sum = sum + make_float2(__uint_as_float(static_cast<unsigned>(bits[i])),
                                __uint_as_float(static_cast<unsigned>(bits[i] >> 32)));
      }
    }
  }
  return sum;
}

__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + __expf(-x));
}

// The features of one pair of packed rows.
template <typename Weights>
struct FeaturePair {
  int lower;
  int upper;  // with SwiGLU the same: the upper row of a pair belongs to the same feature of up

  __device__ __forceinline__ FeaturePair(const MatvecOutput& o, int i_row_block, int i_pair) {
    if (o.epilogue == MatvecEpilogue::kSwiGlu) {
      lower = upper = i_row_block * (Weights::kRows / 2) + i_pair;
      return;
    }
    lower = i_row_block * Weights::kRows + i_pair / kMmaPairs * 16 + i_pair % kMmaPairs;
    upper = lower + kMmaPairs;
  }
};

// What the sums of a pair are added to.
template <typename Weights>
__device__ __forceinline__ float2 residual_of(const MatvecOutput& o,
                                              const FeaturePair<Weights>& pair,
                                              int i_row) {
  using T = typename Weights::Activation;
  float values[2] = {0.0f, 0.0f};
  if (o.epilogue == MatvecEpilogue::kAddResidual) {
    const std::int64_t row = i_row * o.residual_row_stride;
    const int features[2] = {pair.lower, pair.upper};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (features[i] < o.n) {
        values[i] = o.float_out ? static_cast<const float*>(o.p_residual)[row + features[i]]
                                : to_float(static_cast<const T*>(o.p_residual)[row + features[i]]);
      }
    }
  }
  return make_float2(values[0], values[1]);
}

template <typename T>
__device__ __forceinline__ void put(
    const MatvecOutput& o, int i_feature, int i_row, float value, float residual) {
  if (i_feature >= o.n) {
    return;
  }
  const std::int64_t at = i_row * o.out_row_stride + i_feature;
  value = __fmul_rn(value, o.scale);  // no fma with what comes next, in any instance
  if (o.epilogue == MatvecEpilogue::kAddResidual) {
    value = __fadd_rn(value, residual);
  }
  if (o.float_out) {
    static_cast<float*>(o.p_out)[at] = value;
  } else {
    static_cast<T*>(o.p_out)[at] = from_float<T>(value);
  }
}

// Hands over the finished sums of a pair.
template <typename Weights>
__device__ __forceinline__ void put_pair(const MatvecOutput& o,
                                         const FeaturePair<Weights>& pair,
                                         int i_row,
                                         float2 sums,
                                         float2 residual) {
  using T = typename Weights::Activation;
  const float lower = sums.x * Weights::kFactor;
  const float upper = sums.y * Weights::kFactorUpper;
  if (o.epilogue == MatvecEpilogue::kSwiGlu) {
    put<T>(o, pair.lower, i_row, silu(lower) * upper, 0.0f);
    return;
  }
  put<T>(o, pair.lower, i_row, lower, residual.x);
  put<T>(o, pair.upper, i_row, upper, residual.y);
}

// What the end of a row block asks about a warp's share. Not in registers, which are scarce in the
// loop.
struct WarpShare {
  int num_body_items;  // behind the row block in which it begins, or all, if it begins with one
  int end;             // one beyond its last item
};

// Up to eight activation rows.
template <typename Weights>
__device__ __forceinline__ void matvec_block(const MatvecTask<typename Weights::Source>& task) {
  using T = typename Weights::Activation;
  using Activations = typename Weights::Activations;
  constexpr int kPairs = Weights::kRows / 2;
  constexpr int kLaneRows = Weights::kLaneRows;
  BYTEBOUND_DYNAMIC_SHARED(float2, shared_parts);  // [warp][head, tail][pair][row]
  __shared__ WarpShare warp_shares[kMatvecWarps];
  __shared__ Seams seams;

  const int i_lane = threadIdx.x % kWarp;
  const int i_warp = threadIdx.x / kWarp;
  const int num_rows = Weights::kNumRows > 0 ? Weights::kNumRows : task.num_rows;
  const int num_groups = task.num_groups;
  const int slot = kPairs * num_rows;  // pairs of floats
  const auto start_of = [&](int i_block, int w) {
    return task.shares.start(i_block * kMatvecWarps + w);
  };
  const int start = start_of(blockIdx.x, i_warp);
  const int end = start_of(blockIdx.x, i_warp + 1);

  Weights weights(task.weights, num_groups, start, i_lane);
  if (start < end) {
    weights.load_first();
  }
  allow_next_kernel();
  int i_group = start % num_groups;
  wait_for_previous_kernel();

  float sums[Weights::kTiles][2 * kLaneRows] = {};
  const T* p_x = static_cast<const T*>(task.p_x);
  // In the place of this warp's tail, which is written when the last of them have been read.
  static_assert(Activations::kSharedRowBytes <= kPairs * sizeof(float2));
  Activations activations(reinterpret_cast<unsigned char*>(shared_parts + (i_warp * 2 + 1) * slot),
                          i_lane);
  if (start < end) {
    activations.ahead(p_x + i_group * Weights::kColumns, task.x_row_stride, num_rows);
    // Until they have come and are operands, the memory has nothing else to do.
    weights.prefetch_second(end - start);
  }
  if (i_lane == 0) {
    const int num_head_items = i_group > 0 ? num_groups - i_group : 0;
    warp_shares[i_warp] = {max(end - start - num_head_items, 0), end};
  }
  if (i_warp == kMatvecWarps - 1) {
    find_seams(seams, num_groups, start_of);
  }
  __syncwarp();
#pragma unroll 1
  for (int num_left = end - start; num_left > 0; --num_left) {
    const typename Weights::X x = activations.take();
    const bool has_next = num_left > 1;
    i_group = i_group + 1 == num_groups ? 0 : i_group + 1;
    if (has_next) {
      activations.ahead(p_x + i_group * Weights::kColumns, task.x_row_stride, num_rows);
    }
    weights.accumulate(x, sums, has_next);
    if (i_group > 0 && has_next) {
      continue;
    }
    // The end of the row block or of this warp's share.
    const WarpShare& share = warp_shares[thread_index() / kWarp];
    const bool is_head = num_left > share.num_body_items;
    const bool whole = !is_head && i_group == 0;
    float2* p_part = shared_parts + (i_warp * 2 + (is_head ? 0 : 1)) * slot;
    __syncwarp();  // every lane has read the activations in its place
#pragma unroll
    for (int i_tile = 0; i_tile < Weights::kTiles; ++i_tile) {
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j) {
        const int i_row = Weights::row(i_lane, j);
        const int i_pair = i_tile * kMmaPairs + i_lane / 4;
        if (i_row < num_rows) {
          p_part[i_pair * num_rows + i_row] =
              make_float2(sums[i_tile][j], sums[i_tile][kLaneRows + j]);
        }
        sums[i_tile][j] = 0.0f;
        sums[i_tile][kLaneRows + j] = 0.0f;
      }
    }
    if (whole) {
      __syncwarp();
      const int i_row_block = (share.end - num_left) / num_groups;
#pragma unroll 1
      for (int e = i_lane; e < slot; e += kWarp) {
        const int i_row = e % num_rows;
        const FeaturePair<Weights> pair(task.output, i_row_block, e / num_rows);
        put_pair(task.output, pair, i_row, p_part[e], residual_of(task.output, pair, i_row));
      }
      __syncwarp();
    }
  }
  __syncthreads();

  // The row blocks that warps of this block share. The first one comes last: its beginning may be
  // in another block, and a block that waited before it sent would make a chain of all blocks.
#pragma unroll 1
  for (int e = seams.count * slot - 1 - static_cast<int>(threadIdx.x); e >= 0;
       e -= kMatvecThreads) {
    const int i_row = e % num_rows;
    const int i_pair = e / num_rows % kPairs;
    const Seam seam = seams.list[e / num_rows / kPairs];
    const FeaturePair<Weights> pair(task.output, seam.i_row_block, i_pair);
    const bool sends = seam.num_senders == kSends;
    const float2 residual = sends ? make_float2(0.0f, 0.0f) : residual_of(task.output, pair, i_row);
    const int i = i_pair * num_rows + i_row;
    const float2* p_part = shared_parts + seam.first_warp * 2 * slot + i;
    float2 sum = p_part[seam.is_tail ? slot : 0];
    float2 others[kMatvecWarps];
#pragma unroll
    for (int w = 1; w < kMatvecWarps; ++w) {
      others[w] = w < seam.num_warps ? p_part[w * 2 * slot] : make_float2(0.0f, 0.0f);
    }
#pragma unroll
    for (int w = 1; w < kMatvecWarps; ++w) {
      if (w < seam.num_warps) {
        sum = sum + others[w];
      }
    }
    if (sends) {
      store_relaxed(task.p_sent + static_cast<std::int64_t>(blockIdx.x) * slot + i, sum);
      continue;
    }
    if (seam.num_senders > 0) {
      const int i_sender = static_cast<int>(blockIdx.x) - seam.num_senders;
      sum = receive_sum(task.p_sent + static_cast<std::int64_t>(i_sender) * slot + i, slot,
                        seam.num_senders) +
            sum;
    }
    put_pair(task.output, pair, i_row, sum, residual);
  }
}

// What the launchers need; host code.

// Moves the rows of a launch on by a number of rows.
template <typename Params>
void skip_rows(Params& p, std::int64_t rows) {
  const std::int64_t out_bytes = p.float_out ? 4 : 2;
  p.x = static_cast<const char*>(p.x) + rows * p.x_row_stride * 2;
  p.out = static_cast<char*>(p.out) + rows * p.out_row_stride * out_bytes;
  if (p.residual != nullptr) {
    p.residual = static_cast<const char*>(p.residual) + rows * p.residual_row_stride * out_bytes;
  }
}

// Blocks of a launch: those that have items.
template <typename Source>
dim3 matvec_grid(const MatvecTask<Source>& task) {
  return dim3((task.shares.num_warps + kMatvecWarps - 1) / kMatvecWarps);
}

template <typename Weights>
constexpr std::size_t matvec_shared_bytes(std::int64_t rows) {
  return sizeof(float2) * kMatvecWarps * 2 * (Weights::kRows / 2) * static_cast<std::size_t>(rows);
}

template <typename Weights, typename Params>
MatvecTask<typename Weights::Source> matvec_task(const typename Weights::Source& source,
                                                 const Params& p) {
  const std::int64_t packed_rows = p.epilogue == MatvecEpilogue::kSwiGlu ? 2 * p.n : p.n;
  const std::int64_t groups = p.k / Weights::kColumns;
  const std::int64_t items = (packed_rows + Weights::kRows - 1) / Weights::kRows * groups;
  const std::int64_t warps = p.num_blocks * kMatvecWarps;
  const std::int64_t busy = items < warps ? items : warps;
  MatvecTask<typename Weights::Source> task = {};
  task.weights = source;
  task.p_x = p.x;
  task.x_row_stride = p.x_row_stride;
  task.num_rows = static_cast<int>(p.rows);
  task.num_groups = static_cast<int>(groups);
  task.shares = {static_cast<int>(items), static_cast<int>(items / busy),
                 static_cast<unsigned>((items % busy << 32) / busy), static_cast<int>(busy)};
  task.p_sent = static_cast<float2*>(p.workspace);
  task.output = {
      p.out,       p.residual, p.out_row_stride, p.residual_row_stride, static_cast<int>(p.n),
      p.float_out, p.epilogue, p.scale};
  return task;
}

}  // namespace bytebound
