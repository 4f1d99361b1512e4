// Greedy acceptance: one warp, one lane per row. It costs a launch and two memory latencies.
#include "speculative_accept.h"

#include "cuda/commit.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"

namespace bytebound {
namespace {

constexpr std::int64_t kMaxCapacity = std::int64_t{1} << 30;

struct KernelArgs {
  const std::int32_t* p_ids;
  const std::int32_t* p_drafts;
  CommitArgs commit;
};

__global__ void __launch_bounds__(kWarp) speculative_accept_kernel(KernelArgs args) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int i_lane = threadIdx.x;
  const int num_drafts = args.commit.rows - 1;
  const int id = i_lane <= num_drafts ? args.p_ids[i_lane] : -1;
  const int draft = i_lane < num_drafts ? args.p_drafts[i_lane] : -1;
  // The lane behind the last draft always refuses, so there is a first refusal.
  const bool refused = i_lane >= num_drafts || draft != id || id < 0;
  const int num_accepted = __ffs(static_cast<int>(__ballot_sync(kAllLanes, refused))) - 1;
  const int next = __shfl_sync(kAllLanes, id, num_accepted);
  commit_cycle(args.commit, draft, num_accepted, next);
}

}  // namespace

Status speculative_accept(const SpeculativeAcceptParams& p, void* stream) {
  const bool capacity_fits =
      p.output == nullptr || (p.capacity >= p.rows && p.capacity <= kMaxCapacity);
  if (p.rows < 1 || p.rows > kMaxCycleRows || !capacity_fits) {
    return kSizeOutOfRange;
  }
  const DeviceGuard guard(p.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  const CommitArgs commit = {p.cycle, p.output, static_cast<int>(p.capacity),
                             static_cast<int>(p.rows)};
  const KernelArgs args = {p.ids, p.drafts, commit};
  LaunchOptions options;
  options.overlap_previous = true;
  return launch_with(options, speculative_accept_kernel, dim3(1), dim3(kWarp), stream, args);
}

}  // namespace bytebound
