// Launches a kernel and hands back the error of that very launch.
#pragma once

#include <cuda_runtime.h>

#include "../status.h"

namespace bytebound {

// Shared memory of so many blocks on a multiprocessor, of which the system takes a part itself.
constexpr std::size_t shared_of_blocks(std::size_t blocks, std::size_t block_bytes) {
  constexpr std::size_t kReservedBytes = 1 << 10;
  return blocks * (block_bytes + kReservedBytes);
}

// Shared memory of a multiprocessor while a step's kernels run: what two blocks of the largest
// product of a few rows take (w4_matvec.cu). The rest of its memory is L1.
//
// Blocks of kernels that ask for different divisions are never on a multiprocessor together: the
// ones that come wait until the others have ended. So all that are a step's ask for the same, and
// those of a kernel that waits for the one before it are there in time.
constexpr std::size_t kSharedPerSm = shared_of_blocks(2, 33 << 10);

// What a launch needs beyond grid and block.
struct LaunchOptions {
  std::size_t shared_bytes = 0;  // dynamic shared memory; above 48 KiB it is asked for here
  int cluster = 1;               // blocks of a thread block cluster, along x; sm_90 and later
  // The kernel may start while the one before it in the stream still runs, and calls
  // wait_for_previous_kernel() (dependent.cuh) before it touches what that one reads or writes.
  // Ignored before sm_90.
  bool overlap_previous = false;
  // Shared memory that a multiprocessor is to have, if the kernel is one that overlaps others: the
  // next size above it that there is. More for a kernel of which several large blocks are to be
  // there at once. A recording keeps it.
  std::size_t shared_per_sm = kSharedPerSm;
};

// The compute capability's major version of the current device; 0 where it cannot be asked.
inline int device_major() {
  int device = 0;
  int major = 0;
  if (cudaGetDevice(&device) == cudaSuccess) {
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  return major;
}

// shared_per_sm as launches take it: percent of the most that a multiprocessor of the current
// device can have; what the driver likes where it cannot be asked.
inline int shared_percent(std::size_t shared_per_sm) {
  int device = 0;
  int most = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device) !=
          cudaSuccess ||
      most <= 0) {
    return cudaSharedmemCarveoutDefault;
  }
  const std::size_t percent = (100 * shared_per_sm + most - 1) / most;
  return percent < 100 ? static_cast<int>(percent) : 100;
}

template <typename... Params, typename... Args>
Status launch_with(const LaunchOptions& options,
                   void (*kernel)(Params...),
                   dim3 grid,
                   dim3 block,
                   void* stream,
                   const Args&... args) {
  constexpr std::size_t kDefaultSharedBytes = 48 << 10;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = options.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);

  cudaLaunchAttribute attributes[3] = {};
  unsigned num_attributes = 0;
  if (options.cluster > 1) {
    attributes[num_attributes].id = cudaLaunchAttributeClusterDimension;
    attributes[num_attributes].val.clusterDim = {static_cast<unsigned>(options.cluster), 1, 1};
    ++num_attributes;
  }
  if (options.overlap_previous && device_major() >= 9) {
    attributes[num_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[num_attributes].val.programmaticStreamSerializationAllowed = 1;
    ++num_attributes;
    attributes[num_attributes].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[num_attributes].val.sharedMemCarveout =
        static_cast<unsigned>(shared_percent(options.shared_per_sm));
    ++num_attributes;
  }
  config.attrs = attributes;
  config.numAttrs = num_attributes;

  cudaError_t error = cudaSuccess;
  if (options.shared_bytes > kDefaultSharedBytes) {
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(options.shared_bytes));
  }
  if (error == cudaSuccess) {
    error = cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
  }
  if (error != cudaSuccess) {
    // The error is reported here, so it must not surface again at the next launch.
    cudaGetLastError();
  }
  return error;
}

template <typename... Params, typename... Args>
Status launch(void (*kernel)(Params...), dim3 grid, dim3 block, void* stream, const Args&... args) {
  return launch_with(LaunchOptions{}, kernel, grid, block, stream, args...);
}

}  // namespace bytebound
