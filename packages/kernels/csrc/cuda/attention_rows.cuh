// The rows that attention starts from, a warp for each vector of 256: a norm, the rotary turn, and
// the way into the cache. As in attention_tile.cuh, what is rounded is an intrinsic, so that every
// kernel has the same bits.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "attention_tile.cuh"
#include "chunk.cuh"
#include "reduce.cuh"

namespace bytebound {

// Eight dims of a lane as they lie in memory, in pairs, and as numbers.
__device__ __forceinline__ void load_pairs(const void* p_from,
                                           int64_t i_row,
                                           bool vector,
                                           uint32_t (&pairs)[4]) {
  const auto* p_row = static_cast<const uint16_t*>(p_from) + i_row + threadIdx.x % kWarp * kChunk;
  if (vector) {
    const uint4 loaded = *reinterpret_cast<const uint4*>(p_row);
    pairs[0] = loaded.x;
    pairs[1] = loaded.y;
    pairs[2] = loaded.z;
    pairs[3] = loaded.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    pairs[j] = p_row[2 * j] | static_cast<uint32_t>(p_row[2 * j + 1]) << 16;
  }
}

__device__ __forceinline__ void to_numbers(float (&b)[kChunk],
                                           const uint32_t (&pairs)[4],
                                           bool half) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const uint32_t bits = pairs[j / 2] >> (16 * (j % 2)) & 0xffffu;
    b[j] = half ? __half2float(__ushort_as_half(static_cast<unsigned short>(bits)))
                : __uint_as_float(bits << 16);
  }
}

// RMSNorm of the warp's row with the factors 1 + w.
__device__ __forceinline__ void norm_row(float (&b)[kChunk],
                                         const float (&b_factor)[kChunk],
                                         float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    sum = fmaf(b[j], b[j], sum);
  }
  const float inverse_rms = __frsqrt_rn(__fadd_rn(__fmul_rn(warp_sum(sum), 1.0f / kHeadDim), eps));
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b[j] = __fmul_rn(__fmul_rn(b[j], inverse_rms), b_factor[j]);
  }
}

// Sine and cosine of position * inv_freq, in this order. The product is rounded to float32, as the
// model defines it; its whole turns are taken off in double, so it is exact at any position.
__device__ __forceinline__ float2 turn_of(float inv_freq, int position) {
  constexpr double kTurnsPerRadian = 0.15915494309189533577;
  const float angle = __fmul_rn(static_cast<float>(position), inv_freq);
  const double turns = __dmul_rn(static_cast<double>(angle), kTurnsPerRadian);
  float2 turn;
  sincospif(2.0f * static_cast<float>(__dsub_rn(turns, rint(turns))), &turn.x, &turn.y);
  return turn;
}

// Turns dims i and i + half_rotary. p_turns: [half_rotary], of the row's position.
__device__ __forceinline__ void turn_row(float (&b)[kChunk],
                                         const float2* p_turns,
                                         int half_rotary) {
  const int i_lane = threadIdx.x % kWarp;
  const int half_lanes = half_rotary / kChunk;
  const bool is_lower = i_lane < half_lanes;
  const int i_partner = is_lower ? i_lane + half_lanes : i_lane - half_lanes;
  const float sign = is_lower ? -1.0f : 1.0f;
  const bool turns = i_lane < 2 * half_lanes;
  const float2* p_own = p_turns + (turns ? (is_lower ? i_lane : i_partner) * kChunk : 0);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const float partner = __shfl_sync(kAllLanes, b[j], i_partner % kWarp);
    const float2 turn = p_own[j];
    if (turns) {
      b[j] = fmaf(b[j], turn.y, sign * __fmul_rn(partner, turn.x));
    }
  }
}

// Where a new row goes: into the cache, and into shared memory for the block itself.
struct NewRow {
  unsigned char* p_cache;
  float* p_scale;  // null without scales
  unsigned char* p_staged;
  float* p_staged_scale;
};

template <typename T>
__device__ __forceinline__ void append_row(const WideCache<T>& /* cache */,
                                           const float (&b)[kChunk],
                                           const NewRow& to) {
  uint4 packed;
  packed.x = pack_pair(b[0], b[1], T{});
  packed.y = pack_pair(b[2], b[3], T{});
  packed.z = pack_pair(b[4], b[5], T{});
  packed.w = pack_pair(b[6], b[7], T{});
  const int i_lane = threadIdx.x % kWarp;
  reinterpret_cast<uint4*>(to.p_cache)[i_lane] = packed;
  reinterpret_cast<uint4*>(to.p_staged)[i_lane] = packed;
}

// scale = max |x| / 448, so that the largest number of the row is the largest of e4m3. A row that
// is not finite gets a NaN scale, and zeros.
__device__ __forceinline__ void append_row(const Float8Cache& /* cache */,
                                           const float (&b)[kChunk],
                                           const NewRow& to) {
  constexpr float kLargest = 448.0f;
  float largest = 0.0f;
  bool finite = true;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    largest = fmaxf(largest, fabsf(b[j]));
    finite = finite && isfinite(b[j]);
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
  }
  finite = __all_sync(kAllLanes, finite);
  const float scale = finite ? largest / kLargest : __int_as_float(0x7fffffff);
  uint32_t words[2] = {0, 0};
  if (finite && scale > 0.0f) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const uint32_t byte =
          __nv_cvt_float_to_fp8(__fdiv_rn(b[j], scale), __NV_SATFINITE, __NV_E4M3);
      words[j / 4] |= byte << (8 * (j % 4));
    }
  }
  const int i_lane = threadIdx.x % kWarp;
  reinterpret_cast<uint2*>(to.p_cache)[i_lane] = make_uint2(words[0], words[1]);
  reinterpret_cast<uint2*>(to.p_staged)[i_lane] = make_uint2(words[0], words[1]);
  if (i_lane == 0) {
    *to.p_scale = scale;
    *to.p_staged_scale = scale;
  }
}

}  // namespace bytebound
