// Conversions of float8_e4m3fn. PTX ISA, "cvt".
#pragma once

#include <cstdint>

namespace bytebound {

// Bytes 0 and 1, and bytes 2 and 3, as two float16 each, exactly. Nothing before sm_89.
__device__ __forceinline__ void widen_e4m3(uint32_t (&halves)[2], uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n"
      "}"
      : "=r"(halves[0]), "=r"(halves[1])
      : "r"(bytes));
#endif
}

}  // namespace bytebound
