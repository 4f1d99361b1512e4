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

template <typename T>
__device__ __forceinline__ void put(const MatvecOutput& o, int i_feature, int i_row, float value) {
  if (i_feature >= o.n) {
    return;
  }
  const std::int64_t at = i_row * o.out_row_stride + i_feature;
  value = __fmul_rn(value, o.scale);  // no fma with what comes next, in any instance
  if (o.epilogue == MatvecEpilogue::kAddResidual) {
    const std::int64_t from = i_row * o.residual_row_stride + i_feature;
    value = __fadd_rn(value, o.float_out ? static_cast<const float*>(o.p_residual)[from]
                                         : to_float(static_cast<const T*>(o.p_residual)[from]));
  }
  if (o.float_out) {
    static_cast<float*>(o.p_out)[at] = value;
  } else {
    static_cast<T*>(o.p_out)[at] = from_float<T>(value);
  }
}

// Hands over the sums of one pair of packed rows: 16 (i_pair / 8) + i_pair % 8, and 8 further on.
template <typename Weights>
__device__ __forceinline__ void put_pair(
    const MatvecOutput& o, int i_block, int i_pair, int i_row, float2 sums) {
  using T = typename Weights::Activation;
  const float lower = sums.x * Weights::kFactor;
  const float upper = sums.y * Weights::kFactorUpper;
  if (o.epilogue == MatvecEpilogue::kSwiGlu) {
    // The lower row of a pair is the gate, the upper one belongs to the same feature of up.
    put<T>(o, i_block * (Weights::kRows / 2) + i_pair, i_row, silu(lower) * upper);
    return;
  }
  const int i_feature = i_block * Weights::kRows + i_pair / kMmaPairs * 16 + i_pair % kMmaPairs;
  put<T>(o, i_feature, i_row, lower);
  put<T>(o, i_feature + kMmaPairs, i_row, upper);
}

// Up to eight activation rows.
template <typename Weights>
__device__ __forceinline__ void matvec_block(const MatvecTask<typename Weights::Source>& task) {
  using T = typename Weights::Activation;
  using Activations = typename Weights::Activations;
  constexpr int kPairs = Weights::kRows / 2;
  constexpr int kLaneRows = Weights::kLaneRows;
  BYTEBOUND_DYNAMIC_SHARED(float2, shared_parts);  // [warp][head, tail][pair][row]
  __shared__ int starts[kMatvecWarps + 1];

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
  int i_group = start % num_groups;
  if (threadIdx.x <= kMatvecWarps) {
    starts[threadIdx.x] = start_of(blockIdx.x, threadIdx.x);
  }
  allow_next_kernel();
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
    int i_warp_again = i_warp;
    asm volatile("" : "+r"(i_warp_again));  // worked out again: registers are scarce in the loop
    const int i_row_block = (start_of(blockIdx.x, i_warp_again + 1) - num_left) / num_groups;
    const bool is_head = start_of(blockIdx.x, i_warp_again) > i_row_block * num_groups;
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
#pragma unroll 1
      for (int e = i_lane; e < slot; e += kWarp) {
        put_pair<Weights>(task.output, i_row_block, e / num_rows, e % num_rows, p_part[e]);
      }
      __syncwarp();
    }
  }
  __syncthreads();

  // The row blocks that warps of this block share. The first one comes last: its beginning may be
  // in another block, and a block that waited before it sent would make a chain of all blocks.
  const int block_start = starts[0];
  const int block_end = starts[kMatvecWarps];
  const int i_head = block_start / num_groups;
  const int num_pieces = block_start < block_end ? (block_end - 1) / num_groups - i_head + 1 : 0;
#pragma unroll 1
  for (int e = num_pieces * slot - 1 - static_cast<int>(threadIdx.x); e >= 0; e -= kMatvecThreads) {
    const int i_piece = e / slot;
    const int i = e - i_piece * slot;  // [pair][row]
    const int first = (i_head + i_piece) * num_groups;
    const int last = first + num_groups;  // one beyond
    int w = 0;
    while (starts[w + 1] <= first) {
      ++w;
    }
    if (starts[w] <= first && starts[w + 1] >= last) {
      continue;  // one warp did it alone
    }
    float2 sum = shared_parts[(w * 2 + (starts[w] > first ? 0 : 1)) * slot + i];
#pragma unroll 1
    for (++w; w < kMatvecWarps && starts[w] < last; ++w) {
      sum = sum + shared_parts[w * 2 * slot + i];
    }
    if (block_end < last) {
      store_relaxed(task.p_sent + static_cast<std::int64_t>(blockIdx.x) * slot + i, sum);
      continue;
    }
    if (block_start > first) {
      int i_sender = blockIdx.x - 1;
      while (start_of(i_sender, 0) > first) {
        --i_sender;
      }
      sum = receive_sum(task.p_sent + static_cast<std::int64_t>(i_sender) * slot + i, slot,
                        static_cast<int>(blockIdx.x) - i_sender) +
            sum;
    }
    put_pair<Weights>(task.output, i_head + i_piece, i / num_rows, i % num_rows, sum);
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

template <typename Weights>
std::size_t matvec_shared_bytes(std::int64_t rows) {
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
