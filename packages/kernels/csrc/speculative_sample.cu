// Sampled acceptance: every block decides for itself which drafts stand, which takes one number per
// draft; then all blocks share one draw over the vocabulary (draw.cuh), and the last one commits.
//
//   block b   [ decide j ][ sum of slice b of row j ]
//   last                                             [ draw ][ commit ]
#include "speculative_sample.h"

#include "cuda/chunk.cuh"
#include "cuda/commit.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/draw.cuh"
#include "cuda/launch.h"
#include "cuda/philox.cuh"

namespace bytebound {
namespace {

constexpr std::int64_t kMaxCapacity = std::int64_t{1} << 30;
constexpr std::int64_t kCounterBytes = 16;

struct KernelArgs {
  const double* p_weights;
  const double* p_totals;
  const std::int32_t* p_drafts;
  const double* p_draft_weights;
  const double* p_draft_totals;
  const std::int64_t* p_seed;
  unsigned* p_counter;
  double* p_partials;
  CommitArgs commit;
  int n;
};

// Whether the draft of this row stands, if those before it do.
__device__ __forceinline__ bool stands(
    const KernelArgs& args, int i_row, int draft, std::uint64_t seed, std::int64_t position) {
  if (draft < 0 || draft >= args.n) {
    return false;
  }
  const std::int64_t o_row = static_cast<std::int64_t>(i_row) * args.n;
  const double p = args.p_weights[o_row + draft] / args.p_totals[i_row];
  const double q = args.p_draft_weights == nullptr
                       ? 1.0
                       : args.p_draft_weights[o_row + draft] / args.p_draft_totals[i_row];
  return philox_uniform(seed, position + i_row, kPurposeAccept) < p / q;
}

__global__ void __launch_bounds__(kSearchThreads, 2) speculative_sample_kernel(KernelArgs args) {
  __shared__ DrawShared shared;
  __shared__ int shared_accepted;
  allow_next_kernel();
  wait_for_previous_kernel();

  const int num_drafts = args.commit.rows - 1;
  const int i_lane = threadIdx.x % kWarp;
  const auto seed = static_cast<std::uint64_t>(*args.p_seed);
  const std::int64_t position = args.commit.p_cycle[kCyclePosition];
  const int draft = i_lane < num_drafts ? args.p_drafts[i_lane] : -1;
  if (threadIdx.x < kWarp) {
    // The lane behind the last draft always refuses, so there is a first refusal.
    const bool refused = i_lane >= num_drafts || !stands(args, i_lane, draft, seed, position);
    const int first = __ffs(static_cast<int>(__ballot_sync(kAllLanes, refused))) - 1;
    if (i_lane == 0) {
      shared_accepted = first;
    }
  }
  __syncthreads();
  const int num_accepted = shared_accepted;
  const bool is_residual = num_accepted < num_drafts;
  const int refused_draft = __shfl_sync(kAllLanes, draft, num_accepted);

  const std::int64_t o_row = static_cast<std::int64_t>(num_accepted) * args.n;
  const double total = args.p_totals[num_accepted];
  const bool is_certain = args.p_draft_weights == nullptr;
  const double draft_total = is_residual && !is_certain ? args.p_draft_totals[num_accepted] : 1.0;
  const auto load = [&](int i_first, double (&b_weight)[kChunk]) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const int id = i_first + j;
      double weight = 0.0;
      if (id < args.n) {
        weight = args.p_weights[o_row + id] / total;
        if (is_residual) {
          const double q = is_certain ? (id == refused_draft ? 1.0 : 0.0)
                                      : args.p_draft_weights[o_row + id] / draft_total;
          weight = weight > q ? weight - q : 0.0;
        }
      }
      b_weight[j] = weight;
    }
  };
  double b_weight[kChunk];
  load(blockIdx.x * kSlice + threadIdx.x * kChunk, b_weight);
  const double sum = slice_sum(b_weight, shared);
  if (threadIdx.x == 0) {
    args.p_partials[blockIdx.x] = sum;
  }
  if (!is_last_block(args.p_counter, gridDim.x)) {
    return;
  }
  const double uniform = philox_uniform(seed, position + num_accepted,
                                        is_residual ? kPurposeResidual : kPurposeTarget);
  const Drawn drawn = finish_draw(args.p_partials, gridDim.x, uniform, shared, load);
  if (threadIdx.x < kWarp) {
    commit_cycle(args.commit, draft, num_accepted, drawn.id);
  }
}

std::int64_t slices_of(std::int64_t n) {
  return (n + kSlice - 1) / kSlice;
}

}  // namespace

std::int64_t speculative_sample_workspace_bytes(std::int64_t n) {
  return kCounterBytes + slices_of(n) * static_cast<std::int64_t>(sizeof(double));
}

Status speculative_sample(const SpeculativeSampleParams& p, void* stream) {
  const bool capacity_fits =
      p.output == nullptr || (p.capacity >= p.rows && p.capacity <= kMaxCapacity);
  if (p.rows < 1 || p.rows > kMaxCycleRows || p.n < 1 || p.n > kMaxDrawN || !capacity_fits) {
    return kSizeOutOfRange;
  }
  const DeviceGuard guard(p.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  const CommitArgs commit = {p.cycle, p.output, static_cast<int>(p.capacity),
                             static_cast<int>(p.rows)};
  auto* p_bytes = static_cast<char*>(p.workspace);
  const KernelArgs args = {p.weights,
                           p.totals,
                           p.drafts,
                           p.draft_weights,
                           p.draft_totals,
                           p.seed,
                           reinterpret_cast<unsigned*>(p_bytes),
                           reinterpret_cast<double*>(p_bytes + kCounterBytes),
                           commit,
                           static_cast<int>(p.n)};
  const dim3 grid(static_cast<unsigned>(slices_of(p.n)));
  LaunchOptions options;
  options.overlap_previous = true;
  return launch_with(options, speculative_sample_kernel, grid, dim3(kSearchThreads), stream, args);
}

}  // namespace bytebound
