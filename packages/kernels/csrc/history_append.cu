// History: one block, one thread per id. Integer atomics, because ids repeat.
#include "history_append.h"

#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"

namespace bytebound {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxCapacity = std::int64_t{1} << 20;
constexpr std::int64_t kMaxN = (std::int64_t{1} << 31) - 1;

struct KernelArgs {
  const std::int32_t* p_ids;
  const std::int32_t* p_num_ids;
  std::uint8_t* p_seen;
  std::int32_t* p_counts;
  int capacity;
  int n;
};

__global__ void __launch_bounds__(kThreads) history_append_kernel(KernelArgs args) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int num_ids =
      args.p_num_ids == nullptr ? args.capacity : min(*args.p_num_ids, args.capacity);
  for (int i = threadIdx.x; i < num_ids; i += kThreads) {
    const int id = args.p_ids[i];
    if (id >= 0 && id < args.n) {
      if (args.p_seen != nullptr) {
        args.p_seen[id] = 1;
      }
      if (args.p_counts != nullptr) {
        atomicAdd(args.p_counts + id, 1);
      }
    }
  }
}

}  // namespace

Status history_append(const HistoryAppendParams& p, void* stream) {
  if (p.capacity < 0 || p.capacity > kMaxCapacity || p.n < 1 || p.n > kMaxN) {
    return kSizeOutOfRange;
  }
  if (p.capacity == 0) {
    return kOk;
  }
  const DeviceGuard guard(p.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  const KernelArgs args = {
      p.ids, p.num_ids, p.seen, p.counts, static_cast<int>(p.capacity), static_cast<int>(p.n)};
  LaunchOptions options;
  options.overlap_previous = true;
  return launch_with(options, history_append_kernel, dim3(1), dim3(kThreads), stream, args);
}

}  // namespace bytebound
