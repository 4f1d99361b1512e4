// The rows that attention starts from: a norm, the rotary turn, and the way into the cache. Eight
// lanes make a vector of 256, so a warp makes four at once: fewer sums go from lane to lane, and
// none of a turn's. As in attention_tile.cuh, what is rounded is an intrinsic, so that every kernel
// has the same bits.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "attention_tile.cuh"
#include "chunk.cuh"
#include "reduce.cuh"

namespace bytebound {

constexpr int kRowLanes = 8;
constexpr int kWarpRows = kWarp / kRowLanes;
constexpr int kRowPairs = kHeadDim / kChunk / kRowLanes / 2;  // of chunks, in a lane
constexpr int kRowChunks = 2 * kRowPairs;

// The dims of a row that a lane has, pairs of chunks one behind the other. What turns together is a
// pair: chunk p and the one half_rotary dims further on. Behind those, neighbours are.
using RowDims = float[kRowChunks][kChunk];

// Which pair of the row a lane's pair is.
__device__ __forceinline__ int row_pair(int i_pair) {
  return threadIdx.x % kRowLanes + i_pair * kRowLanes;
}

// Which chunk of the row a lane's chunk is.
__device__ __forceinline__ int row_chunk(int i_chunk, int half_rotary) {
  const int p = row_pair(i_chunk / 2);
  const int half_chunks = half_rotary / kChunk;
  return p < half_chunks ? p + i_chunk % 2 * half_chunks : 2 * p + i_chunk % 2;
}

template <bool kHalf>
__device__ __forceinline__ void to_numbers(RowDims& b, const uint4 (&loaded)[kRowChunks]) {
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    const uint32_t pairs[4] = {loaded[c].x, loaded[c].y, loaded[c].z, loaded[c].w};
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const uint32_t bits = pairs[j / 2] >> (16 * (j % 2)) & 0xffffu;
      b[c][j] = kHalf ? __half2float(__ushort_as_half(static_cast<unsigned short>(bits)))
                      : __uint_as_float(bits << 16);
    }
  }
}

// What RMSNorm divides a row by, as a factor. All lanes of the warp call it.
__device__ __forceinline__ float inverse_rms(const RowDims& b, float eps) {
  float sums[kRowChunks] = {};
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) {
      sums[c] = fmaf(b[c][j], b[c][j], sums[c]);
    }
  }
  static_assert(kRowChunks == 4, "what is added here");
  float sum = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
#pragma unroll
  for (int distance = kRowLanes / 2; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, distance));
  }
  return __frsqrt_rn(__fadd_rn(__fmul_rn(sum, 1.0f / kHeadDim), eps));
}

// The rest of RMSNorm. p_factors: [kHeadDim], 1 + w.
__device__ __forceinline__ void norm_row(RowDims& b,
                                         float inverse_rms,
                                         const float* p_factors,
                                         int half_rotary) {
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    const auto* p = reinterpret_cast<const float4*>(p_factors + row_chunk(c, half_rotary) * kChunk);
#pragma unroll
    for (int j = 0; j < kChunk; j += 4) {
      const float4 factor = p[j / 4];
      b[c][j] = __fmul_rn(__fmul_rn(b[c][j], inverse_rms), factor.x);
      b[c][j + 1] = __fmul_rn(__fmul_rn(b[c][j + 1], inverse_rms), factor.y);
      b[c][j + 2] = __fmul_rn(__fmul_rn(b[c][j + 2], inverse_rms), factor.z);
      b[c][j + 3] = __fmul_rn(__fmul_rn(b[c][j + 3], inverse_rms), factor.w);
    }
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

__device__ __forceinline__ void turn_two(float& lower, float& upper, float sine, float cosine) {
  const float b = lower;
  lower = fmaf(b, cosine, -__fmul_rn(upper, sine));
  upper = fmaf(upper, cosine, __fmul_rn(b, sine));
}

// Turns dims i and i + half_rotary. p_turns: [half_rotary], of the row's position.
__device__ __forceinline__ void turn_row(RowDims& b, const float2* p_turns, int half_rotary) {
#pragma unroll
  for (int i = 0; i < kRowPairs; ++i) {
    const int first = row_pair(i) * kChunk;
    if (first < half_rotary) {
      const auto* p = reinterpret_cast<const float4*>(p_turns + first);
#pragma unroll
      for (int j = 0; j < kChunk; j += 2) {
        const float4 two = p[j / 2];
        turn_two(b[2 * i][j], b[2 * i + 1][j], two.x, two.y);
        turn_two(b[2 * i][j + 1], b[2 * i + 1][j + 1], two.z, two.w);
      }
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
__device__ __forceinline__ uint4 pack_chunk(const float (&b)[kChunk]) {
  return make_uint4(pack_pair(b[0], b[1], T{}), pack_pair(b[2], b[3], T{}),
                    pack_pair(b[4], b[5], T{}), pack_pair(b[6], b[7], T{}));
}

// What a row is divided by on its way into the cache.
template <typename T>
__device__ __forceinline__ float row_scale(const WideCache<T>& /* cache */,
                                           const RowDims& /* b */) {
  return 1.0f;
}

// max |x| / 448, so that the largest number of the row is the largest of e4m3; NaN for a row that
// is not finite. All lanes of the warp call it.
__device__ __forceinline__ float row_scale(const Float8Cache& /* cache */, const RowDims& b) {
  constexpr float kLargest = 448.0f;
  float largest = 0.0f;
  int finite = 1;
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      largest = fmaxf(largest, fabsf(b[c][j]));
      finite &= isfinite(b[c][j]) ? 1 : 0;
    }
  }
#pragma unroll
  for (int distance = kRowLanes / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    finite &= __shfl_xor_sync(kAllLanes, finite, distance);
  }
  return finite ? __fdiv_rn(largest, kLargest) : __int_as_float(0x7fffffff);
}

template <typename T>
__device__ __forceinline__ void append_row(const WideCache<T>& /* cache */,
                                           const RowDims& b,
                                           float /* scale */,
                                           int half_rotary,
                                           const NewRow& to) {
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    const int i_chunk = row_chunk(c, half_rotary);
    const uint4 packed = pack_chunk<T>(b[c]);
    reinterpret_cast<uint4*>(to.p_cache)[i_chunk] = packed;
    reinterpret_cast<uint4*>(to.p_staged)[i_chunk] = packed;
  }
}

// A row that is not finite becomes zeros, beside its NaN.
__device__ __forceinline__ void append_row(const Float8Cache& /* cache */,
                                           const RowDims& b,
                                           float scale,
                                           int half_rotary,
                                           const NewRow& to) {
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    uint32_t words[2] = {0, 0};
    if (scale > 0.0f) {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const uint32_t byte =
            __nv_cvt_float_to_fp8(__fdiv_rn(b[c][j], scale), __NV_SATFINITE, __NV_E4M3);
        words[j / 4] |= byte << (8 * (j % 4));
      }
    }
    const int i_chunk = row_chunk(c, half_rotary);
    reinterpret_cast<uint2*>(to.p_cache)[i_chunk] = make_uint2(words[0], words[1]);
    reinterpret_cast<uint2*>(to.p_staged)[i_chunk] = make_uint2(words[0], words[1]);
  }
  if (threadIdx.x % kRowLanes == 0) {
    *to.p_scale = scale;
    *to.p_staged_scale = scale;
  }
}

}  // namespace bytebound
