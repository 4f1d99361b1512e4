// Log-probabilities: every block takes one slice of 2048 ids of one row, the last block combines.
//
//   each block      maximum, sum of exp(x - maximum) and the n highest of its slice -> workspace
//   the last block  maximum, sum and the n highest over all slices                  -> result
//
// The highest are found one after the other, each as the maximum of what lies below the one before:
// n rounds of a block maximum, twice. Meant for a handful of ids per token, not for a fast n = 20.
#include "logprobs.h"

#include "cuda/chunk.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/draw.cuh"
#include "cuda/launch.h"
#include "cuda/scan.cuh"

namespace bytebound {
namespace {

constexpr std::int64_t kMaxRows = 65535;  // the limit of gridDim.y
constexpr std::int64_t kMaxTop = 20;
constexpr std::int64_t kCounterBytes = 16;

struct Partial {
  double sum;      // of exp(x - maximum)
  double maximum;  // NaN where the slice holds one
};

struct KernelArgs {
  const float* p_logits;
  const std::int32_t* p_ids;
  double* p_out_values;
  std::int32_t* p_out_ids;
  unsigned* p_counters;     // [R], kCounterBytes apart
  Partial* p_partials;      // [R, num_slices]
  Candidate* p_candidates;  // [R, num_slices, num_top]
  std::int64_t row_stride;  // in elements
  int n;
  int num_top;
};

__device__ __forceinline__ double nan_value() {
  return __longlong_as_double(0x7ff8000000000000ll);
}

// The maximum as a float64; a candidate above +infinity is NaN.
__device__ __forceinline__ double value_of(Candidate best) {
  return best == kNanCandidate ? nan_value() : static_cast<double>(key_value(candidate_key(best)));
}

// exp(x - maximum) for x <= maximum; 0 where both are -infinity, NaN where the maximum is
// +infinity.
__device__ __forceinline__ double relative_exp(double x, double maximum) {
  return isinf(maximum) && maximum < 0.0 ? 0.0 : exp(x - maximum);
}

template <bool kVector>
__global__ void __launch_bounds__(kSearchThreads, 4) logprobs_kernel(KernelArgs args) {
  __shared__ Candidate shared_best[2][kSearchWarps];
  __shared__ double shared_sums[2][kSearchWarps];
  allow_next_kernel();
  wait_for_previous_kernel();

  const int i_row = blockIdx.y;
  const int num_slices = gridDim.x;
  const float* p_row = args.p_logits + i_row * args.row_stride;
  Partial* p_partials = args.p_partials + static_cast<std::int64_t>(i_row) * num_slices;
  Candidate* p_candidates =
      args.p_candidates + static_cast<std::int64_t>(i_row) * num_slices * args.num_top;

  const int i_first = blockIdx.x * kSlice + threadIdx.x * kChunk;
  float b_value[kChunk];
  Candidate b_candidate[kChunk];
  load_chunk<kVector>(p_row, i_first, args.n, b_value);
  Candidate best = kNoCandidate;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b_candidate[j] = i_first + j < args.n ? candidate(b_value[j], i_first + j) : kNoCandidate;
    best = greater(best, b_candidate[j]);
  }
  best = block_max(best, shared_best[0]);
  const double slice_maximum = value_of(best);
  double sum = 0.0;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    sum += i_first + j < args.n ? relative_exp(b_value[j], slice_maximum) : 0.0;
  }
  sum = block_scan(sum, shared_sums[0]).total;
  if (threadIdx.x == 0) {
    p_partials[blockIdx.x] = {sum, slice_maximum};
  }
  for (int i = 0; i < args.num_top; ++i) {
    if (threadIdx.x == 0) {
      p_candidates[blockIdx.x * args.num_top + i] = best;
    }
    Candidate next = kNoCandidate;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      next = b_candidate[j] < best ? greater(next, b_candidate[j]) : next;
    }
    best = block_max(next, shared_best[(i + 1) % 2]);
  }
  auto* p_counter =
      reinterpret_cast<unsigned*>(reinterpret_cast<char*>(args.p_counters) + i_row * kCounterBytes);
  if (!is_last_block(p_counter, gridDim.x)) {
    return;
  }

  best = kNoCandidate;
  for (int i = threadIdx.x; i < num_slices; i += kSearchThreads) {
    const double maximum = p_partials[i].maximum;
    // The index only keeps the candidates apart.
    best = greater(best, candidate(static_cast<float>(maximum), i));
  }
  const double maximum = value_of(block_max(best, shared_best[0]));
  sum = 0.0;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const int i_slice = threadIdx.x * kChunk + j;
    if (i_slice < num_slices) {
      const Partial partial = p_partials[i_slice];
      sum += partial.sum * relative_exp(partial.maximum, maximum);
    }
  }
  sum = block_scan(sum, shared_sums[1]).total;
  // -infinity everywhere: log(0) makes every value NaN, as -infinity minus itself is.
  const double log_sum = maximum + log(sum);
  const bool is_finite = isfinite(maximum);

  double* p_values = args.p_out_values + static_cast<std::int64_t>(i_row) * (1 + args.num_top);
  std::int32_t* p_ids = args.p_out_ids + static_cast<std::int64_t>(i_row) * (1 + args.num_top);
  if (threadIdx.x == 0) {
    const int id = args.p_ids[i_row];
    const bool inside = id >= 0 && id < args.n;
    p_values[0] = is_finite && inside ? static_cast<double>(p_row[id]) - log_sum : nan_value();
    p_ids[0] = id;
  }
  const int num_candidates = num_slices * args.num_top;
  best = kNanCandidate;
  for (int i = 0; i < args.num_top; ++i) {
    Candidate next = kNoCandidate;
    for (int i_other = threadIdx.x; i_other < num_candidates; i_other += kSearchThreads) {
      const Candidate other = p_candidates[i_other];
      next = other < best ? greater(next, other) : next;
    }
    best = block_max(next, shared_best[(i + 1) % 2]);
    if (threadIdx.x == 0) {
      p_values[1 + i] = is_finite ? value_of(best) - log_sum : nan_value();
      p_ids[1 + i] = is_finite ? candidate_index(best) : -1;
    }
  }
}

std::int64_t slices_of(std::int64_t n) {
  return (n + kSlice - 1) / kSlice;
}

}  // namespace

std::int64_t logprobs_workspace_bytes(std::int64_t rows, std::int64_t n, std::int64_t num_top) {
  const auto slice_bytes = static_cast<std::int64_t>(sizeof(Partial) + num_top * sizeof(Candidate));
  return rows * (kCounterBytes + slices_of(n) * slice_bytes);
}

Status logprobs(const LogprobsParams& p, void* stream) {
  if (p.rows < 0 || p.rows > kMaxRows || p.n < 1 || p.n > kMaxDrawN || p.num_top < 0 ||
      p.num_top > kMaxTop || p.num_top > p.n) {
    return kSizeOutOfRange;
  }
  if (p.rows == 0) {
    return kOk;
  }
  const DeviceGuard guard(p.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  auto* p_bytes = static_cast<char*>(p.workspace);
  auto* p_partials = reinterpret_cast<Partial*>(p_bytes + p.rows * kCounterBytes);
  auto* p_candidates = reinterpret_cast<Candidate*>(p_partials + p.rows * slices_of(p.n));
  const KernelArgs args = {p.logits,
                           p.ids,
                           p.out_values,
                           p.out_ids,
                           reinterpret_cast<unsigned*>(p_bytes),
                           p_partials,
                           p_candidates,
                           p.row_stride,
                           static_cast<int>(p.n),
                           static_cast<int>(p.num_top)};
  const bool vector = reinterpret_cast<std::uintptr_t>(p.logits) % kAccessBytes == 0 &&
                      (p.rows == 1 || p.row_stride * sizeof(float) % kAccessBytes == 0);
  const auto kernel = vector ? logprobs_kernel<true> : logprobs_kernel<false>;
  const dim3 grid(static_cast<unsigned>(slices_of(p.n)), static_cast<unsigned>(p.rows));
  LaunchOptions options;
  options.overlap_previous = true;
  return launch_with(options, kernel, grid, dim3(kSearchThreads), stream, args);
}

}  // namespace bytebound
