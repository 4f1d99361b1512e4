// In place of csrc/cuda/float8.cuh.
#pragma once

#include <cstdint>

namespace bytebound {

inline void widen_e4m3(uint32_t (&halves)[2], uint32_t bytes) {
  for (int i = 0; i < 4; ++i) {
    const auto byte = static_cast<__nv_fp8_storage_t>(bytes >> 8 * i);
    const std::uint32_t half = __nv_cvt_fp8_to_halfraw(byte, __NV_E4M3).x;
    uint32_t& word = halves[i / 2];
    word = i % 2 == 0 ? half : word | half << 16;
  }
}

}  // namespace bytebound
