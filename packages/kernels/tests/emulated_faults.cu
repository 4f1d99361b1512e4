// Kernels with one fault each, and the same without it: what the emulation has to notice.
#include <stdexcept>
#include <string>

#include "cuda/async_copy.cuh"
#include "cuda/dependent.cuh"
#include "cuda/dynamic_shared.cuh"
#include "cuda/gpu_scope.cuh"
#include "cuda/launch.h"

namespace bytebound {
namespace {

constexpr int kThreads = 64;

// out = 64, 63 .. 1
__global__ void turn_round(int* p_out, bool sound) {
  __shared__ int values[kThreads];
  values[threadIdx.x] = static_cast<int>(threadIdx.x) + 1;
  if (sound) {
    __syncthreads();
  }
  p_out[threadIdx.x] = values[kThreads - 1 - threadIdx.x];
}

// out = in, four words a thread
__global__ void copy(int* p_out, const int* p_in, bool sound) {
  BYTEBOUND_DYNAMIC_SHARED(int4, copied);
  async_copy_16(shared_address(copied + threadIdx.x), p_in + 4 * threadIdx.x);
  if (sound) {
    async_copy_wait();
  }
  reinterpret_cast<int4*>(p_out)[threadIdx.x] = copied[threadIdx.x];
}

__global__ void half_a_block_meets(bool sound) {
  if (sound || threadIdx.x < 32) {
    __syncthreads();
  }
}

// Block 0 waits for what block 1 says, which says it or does not.
__global__ void wait_for_another_block(int* p_flag, bool sound) {
  if (blockIdx.x == 0) {
    while (load_acquire(p_flag) != 0) {
    }
  } else if (sound) {
    store_release_zero(p_flag);
  }
}

__global__ void start_early(bool sound) {
  if (sound || threadIdx.x > 0) {
    wait_for_previous_kernel();
  }
}

__global__ void write_shared(bool sound) {
  BYTEBOUND_DYNAMIC_SHARED(int, values);
  values[threadIdx.x + (sound ? 0 : 1)] = 1;
}

__global__ void meet_in_two_places(bool sound) {
  if (sound || threadIdx.x % 2 == 0) {
    __syncwarp();
  } else {
    __shfl_xor_sync(0xffffffffu, 1, 1);
  }
}

void run(const std::string& name, int* p_out, const int* p_in, bool sound) {
  const dim3 one(1), two(2), block(kThreads);
  LaunchOptions options;
  options.shared_bytes = name == "copy"           ? kThreads * sizeof(int4)
                         : name == "write_shared" ? kThreads * sizeof(int)
                                                  : 0;
  options.overlap_previous = name == "start_early";
  if (name == "turn_round") {
    launch_with(options, turn_round, one, block, nullptr, p_out, sound);
  } else if (name == "copy") {
    launch_with(options, copy, one, block, nullptr, p_out, p_in, sound);
  } else if (name == "half_a_block_meets") {
    launch_with(options, half_a_block_meets, one, block, nullptr, sound);
  } else if (name == "wait_for_another_block") {
    launch_with(options, wait_for_another_block, two, dim3(1), nullptr, p_out, sound);
  } else if (name == "start_early") {
    launch_with(options, start_early, one, block, nullptr, sound);
  } else if (name == "write_shared") {
    launch_with(options, write_shared, one, block, nullptr, sound);
  } else if (name == "meet_in_two_places") {
    launch_with(options, meet_in_two_places, one, block, nullptr, sound);
  }
}

}  // namespace
}  // namespace bytebound

// Runs a kernel of that name; returns what the emulation says against it, or "".
extern "C" __attribute__((visibility("default"))) const char* run_fault(const char* name,
                                                                        int* p_out,
                                                                        const int* p_in,
                                                                        bool sound) {
  static std::string problem;
  problem.clear();
  try {
    bytebound::run(name, p_out, p_in, sound);
  } catch (const std::runtime_error& error) {
    problem = error.what();
  }
  return problem.c_str();
}
