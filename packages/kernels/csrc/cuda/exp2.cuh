// The exponential of base 2 as the hardware has it. PTX ISA, "ex2".
#pragma once

namespace bytebound {

// 2^x with a relative error near 2^-22; 0 for what would be subnormal.
__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace bytebound
