// What nvcc knows by itself and g++ does not: CUDA's keywords, and its functions of a device. Every
// source of a kernel is compiled with this file in front of it.
//
// Arithmetic is IEEE's, each operation rounded once, no multiply-add but those that are spelled
// out. The hardware's approximations (__expf, rsqrtf) are the rounded values here.
#pragma once

// CUDA's own headers are to take this for an ordinary host, so they come before the two macros.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <vector_functions.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "block.h"

#define __CUDACC__
#define __CUDA_ARCH__ 900

#undef __shared__
#undef __launch_bounds__
#undef __forceinline__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __forceinline__ inline

#define threadIdx (::emulation::t_block->fiber().thread)
#define blockIdx (::emulation::t_block->index)
#define blockDim (::emulation::t_block->size())
#define gridDim (::emulation::t_block->grid_size())

// Barriers and fences.
inline void __syncthreads() {
  ::emulation::sync("__syncthreads", 0, ::emulation::t_block->num_threads());
}
inline void __syncwarp() {
  ::emulation::meet("__syncwarp", [](auto&) {});
}
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// Exchange within a warp; always of all lanes.
namespace emulation {
template <typename T>
T value_of(const std::uint64_t* values, unsigned lane) {
  T value;
  std::memcpy(&value, values + lane, sizeof value);
  return value;
}
inline void need_all_lanes(unsigned mask) {
  if (mask != 0xffffffffu) {
    t_block->fail("a warp function of some lanes only, which is not emulated");
  }
}
template <typename T, typename Source>
T shuffle(const char* name, unsigned mask, T value, Source source) {
  need_all_lanes(mask);
  const int lane = static_cast<int>(t_block->lane());
  const std::uint64_t* values = exchange(name, value);
  const int from = source(lane);
  return value_of<T>(values, static_cast<unsigned>(from < 0 || from > 31 ? lane : from));
}
inline unsigned ballot(const char* name, unsigned mask, bool vote) {
  need_all_lanes(mask);
  const unsigned num_lanes = t_block->warp().num_lanes;
  const std::uint64_t* values = exchange(name, static_cast<std::uint64_t>(vote));
  unsigned votes = 0;
  for (unsigned i = 0; i < num_lanes; ++i) {
    votes |= static_cast<unsigned>(values[i]) << i;
  }
  return votes;
}
}  // namespace emulation

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return ::emulation::shuffle("__shfl_sync", mask, value, [&](int) { return lane & 31; });
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  for (int bits = 16; bits > 0; bits /= 2) {
    const unsigned other =
        ::emulation::shuffle("__reduce_max_sync", mask, value, [&](int i) { return i ^ bits; });
    value = other > value ? other : value;
  }
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return ::emulation::shuffle("__shfl_xor_sync", mask, value, [&](int i) { return i ^ bits; });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  return ::emulation::shuffle("__shfl_up_sync", mask, value,
                              [&](int i) { return i - static_cast<int>(by); });
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  return ::emulation::shuffle("__shfl_down_sync", mask, value,
                              [&](int i) { return i + static_cast<int>(by); });
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
  return ::emulation::ballot("__ballot_sync", mask, vote != 0);
}
inline int __any_sync(unsigned mask, int vote) {
  return ::emulation::ballot("__any_sync", mask, vote != 0) != 0;
}
inline int __all_sync(unsigned mask, int vote) {
  return ::emulation::ballot("__all_sync", mask, vote == 0) == 0;
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value) {
  ::emulation::need_all_lanes(mask);
  const std::uint64_t* values = ::emulation::exchange("__reduce_min_sync", value);
  T least = value;
  for (unsigned i = 0; i < ::emulation::t_block->warp().num_lanes; ++i) {
    const T other = ::emulation::value_of<T>(values, i);
    least = other < least ? other : least;
  }
  return least;
}

// Atomics. Before each one others may run.
namespace emulation {
template <typename T, typename Change>
T atomically(T* p, Change change) {
  poll("an atomic");
  t_block->note_event();
  T before = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(p, &before, change(before), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST)) {
  }
  return before;
}
}  // namespace emulation

template <typename T>
T atomicAdd(T* p, std::common_type_t<T> value) {
  return ::emulation::atomically(p, [&](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicMax(T* p, std::common_type_t<T> value) {
  return ::emulation::atomically(p, [&](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicOr(T* p, std::common_type_t<T> value) {
  return ::emulation::atomically(p, [&](T old) { return static_cast<T>(old | value); });
}
template <typename T>
T atomicExch(T* p, std::common_type_t<T> value) {
  return ::emulation::atomically(p, [&](T) { return value; });
}
inline unsigned atomicInc(unsigned* p, unsigned last) {
  return ::emulation::atomically(p, [&](unsigned old) { return old >= last ? 0u : old + 1; });
}

// Loads past a cache.
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}

// Bits.
namespace emulation {
template <typename To, typename From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
}  // namespace emulation

inline float __uint_as_float(unsigned bits) {
  return ::emulation::bits_as<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return ::emulation::bits_as<unsigned>(value);
}
inline float __int_as_float(int bits) {
  return ::emulation::bits_as<float>(bits);
}
inline double __longlong_as_double(long long v) {
  return ::emulation::bits_as<double>(v);
}
inline long long __double_as_longlong(double v) {
  return ::emulation::bits_as<long long>(v);
}
inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}
inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned pick = selector >> 4 * i & 15;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (pick & 7)) & 0xff;
    if (pick & 8) {
      byte = byte & 0x80 ? 0xff : 0;  // its sign alone
    }
    result |= byte << 8 * i;
  }
  return result;
}

// Arithmetic.
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline double __dsub_rn(double a, double b) {
  return a - b;
}
inline double __ddiv_rn(double a, double b) {
  return a / b;
}
inline double __drcp_rn(double a) {
  return 1.0 / a;
}
inline unsigned long long __double2ull_rn(double a) {
  return static_cast<unsigned long long>(nearbyint(a));
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __expf(float x) {
  return expf(x);
}
inline float __frsqrt_rn(float x) {
  return static_cast<float>(1.0 / sqrt(static_cast<double>(x)));
}
inline float rsqrtf(float x) {
  return __frsqrt_rn(x);
}
inline void sincospif(float x, float* p_sin, float* p_cos) {
  const double turns = fmod(static_cast<double>(x), 2.0);
  *p_sin = static_cast<float>(sin(M_PI * turns));
  *p_cos = static_cast<float>(cos(M_PI * turns));
}

inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  const auto one = [](__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z) {
    // A product of two is exact in float32, and its sum with a third in float64, if they are near.
    return __double2bfloat16(static_cast<double>(__bfloat162float(x)) * __bfloat162float(y) +
                             __bfloat162float(z));
  };
  return {one(a.x, b.x, c.x), one(a.y, b.y, c.y)};
}

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}
