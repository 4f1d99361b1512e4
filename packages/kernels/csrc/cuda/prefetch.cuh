// What a kernel asks the L2 for on behalf of the one behind it.
#pragma once

#include <cstdint>

#include "async_copy.cuh"

namespace bytebound {

// Memory that the next kernel reads, or none; both are multiples of 16.
struct Prefetch {
  const void* p;
  std::int64_t num_bytes;
};

// Asks the L2 for a part of it, one of num_parts whose pieces alternate. All lanes of one warp.
__device__ __forceinline__ void prefetch_part(const Prefetch& prefetch, int i_part, int num_parts) {
  constexpr int kPieceBytes = 4096;
  const std::int64_t step = static_cast<std::int64_t>(num_parts) * 32 * kPieceBytes;
  std::int64_t o = (static_cast<std::int64_t>(threadIdx.x % 32) * num_parts + i_part) * kPieceBytes;
#pragma unroll 1
  for (; o < prefetch.num_bytes; o += step) {
    const std::int64_t num_left = prefetch.num_bytes - o;
    prefetch_bytes(static_cast<const char*>(prefetch.p) + o,
                   num_left < kPieceBytes ? static_cast<int>(num_left) : kPieceBytes);
  }
}

}  // namespace bytebound
