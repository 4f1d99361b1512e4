// In place of csrc/cuda/launch.h: a launch runs the kernel here, and returns when it has ended.
#pragma once

#include <tuple>

#include "../status.h"
#include "grid.h"

// The toolkit has this only where nvcc compiles.
template <typename... Params>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                          void (*kernel)(Params...),
                                                          int threads,
                                                          std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      blocks, reinterpret_cast<const void*>(kernel), threads, shared_bytes);
}

namespace bytebound {

// As in csrc/cuda/launch.h; a block's shared memory is its own here.
constexpr std::size_t shared_of_blocks(std::size_t blocks, std::size_t block_bytes) {
  return blocks * (block_bytes + (1 << 10));
}
constexpr std::size_t kSharedPerSm = shared_of_blocks(2, 33 << 10);

struct LaunchOptions {
  std::size_t shared_bytes = 0;
  int cluster = 1;
  bool overlap_previous = false;
  std::size_t shared_per_sm = kSharedPerSm;
};

inline int device_major() {
  return 9;
}

template <typename... Params, typename... Args>
Status launch_with(const LaunchOptions& options,
                   void (*kernel)(Params...),
                   dim3 grid,
                   dim3 block,
                   void* /* stream */,
                   const Args&... args) {
  emulation::Launch launch;
  launch.grid = grid;
  launch.block = block;
  launch.shared_bytes = options.shared_bytes;
  launch.cluster = static_cast<unsigned>(options.cluster);
  launch.overlap_previous = options.overlap_previous;
  const std::tuple<std::remove_const_t<Params>...> params(
      static_cast<std::remove_const_t<Params>>(args)...);
  launch.kernel = [&] { std::apply(kernel, params); };
  emulation::Grid(launch).run();
  return kOk;
}

template <typename... Params, typename... Args>
Status launch(void (*kernel)(Params...), dim3 grid, dim3 block, void* stream, const Args&... args) {
  return launch_with(LaunchOptions{}, kernel, grid, block, stream, args...);
}

}  // namespace bytebound
