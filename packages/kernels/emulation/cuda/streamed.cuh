// In place of csrc/cuda/streamed.cuh: ordinary loads.
#pragma once

#include <cstdint>

namespace bytebound {

inline uint4 load_streamed(const void* p) {
  return *static_cast<const uint4*>(p);
}

inline uint32_t load_streamed_word(const void* p) {
  return *static_cast<const uint32_t*>(p);
}

inline void prefetch_to_l2(const void*) {}

}  // namespace bytebound
