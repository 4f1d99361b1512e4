// Conversions between the element types and the float that every kernel computes in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace bytebound {

__device__ __forceinline__ float to_float(__half value) {
  return __half2float(value);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ __forceinline__ float to_float(float value) {
  return value;
}

// Rounds to nearest even; what overflows becomes infinite.
template <typename T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}

}  // namespace bytebound
