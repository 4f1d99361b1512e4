// In place of csrc/cuda/special_registers.cuh.
#pragma once

#include <chrono>
#include <cstdint>

namespace bytebound {

inline std::int64_t global_time() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

inline int thread_index() {
  return static_cast<int>(threadIdx.x);
}

inline int block_index() {
  return static_cast<int>(blockIdx.x);
}

inline int num_blocks() {
  return static_cast<int>(gridDim.x);
}

}  // namespace bytebound
