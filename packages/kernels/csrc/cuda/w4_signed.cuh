// Four-bit weights less their zero points, as A fragments: small whole numbers, exact in the type
// of the activations. Worth its two instructions more per register where a fragment meets many
// activation rows, since the sums then need no correction by a sum of activations.
#pragma once

#include "w4.cuh"

namespace bytebound {

template <typename T>
struct W4Signed;

// Both work in the unit of the codec: q 2^-24 in rows i_quad, q 2^-20 in rows i_quad + 8.
template <>
struct W4Signed<__half> {
  // What add() takes, for a zero point of 0 to 15: the bits of the negative subnormal.
  static __device__ __forceinline__ uint32_t lower(uint32_t zero) {
    return zero * W4Codec<__half>::kOne | 0x80008000u;
  }
  static __device__ __forceinline__ uint32_t upper(uint32_t zero) {
    return zero * W4Codec<__half>::kOneUpper | 0x80008000u;
  }
  static __device__ __forceinline__ uint32_t add(uint32_t a, uint32_t minus_zero) {
    const __half2 sum =
        __hadd2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&minus_zero));
    return *reinterpret_cast<const uint32_t*>(&sum);
  }
};

template <>
struct W4Signed<__nv_bfloat16> {
  // -(128 + zero): the codec yields 128 + q.
  static __device__ __forceinline__ uint32_t lower(uint32_t zero) {
    return zero * 0x00010001u | 0xc300c300u;
  }
  static __device__ __forceinline__ uint32_t upper(uint32_t zero) { return lower(zero); }
  // As a multiplication by 1 and an addition, which sm_80 has in one instruction.
  static __device__ __forceinline__ uint32_t add(uint32_t a, uint32_t minus_zero) {
    const uint32_t one = W4Codec<__nv_bfloat16>::kOne;
    const __nv_bfloat162 sum = __hfma2(*reinterpret_cast<__nv_bfloat162*>(&a),
                                       *reinterpret_cast<const __nv_bfloat162*>(&one),
                                       *reinterpret_cast<__nv_bfloat162*>(&minus_zero));
    return *reinterpret_cast<const uint32_t*>(&sum);
  }
};

}  // namespace bytebound
