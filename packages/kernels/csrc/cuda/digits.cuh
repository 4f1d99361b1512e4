// Activations as fixed-point numbers of two signed bytes each: what integer tensor cores take.
//
// Within a group of 128 columns of one row, whose largest magnitude is 2^e to 2^(e + 1), an
// activation x becomes
//
//   n = round(x 2^(14 - e)) = 256 high + low,   |n| <= 32,639,   high and low signed bytes
//
// with e one larger if n would pass that. A float16 down to 1/16 of 2^e, a bfloat16 down to 1/128,
// is kept exactly; others are off by at most 2^(e - 15), a sixteenth of what rounding to float16
// takes off the largest. Sums of whole numbers are exact: a product over a group has no rounding
// but that one, whatever its order, and no row meets another.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "reduce.cuh"

namespace bytebound {

constexpr int kGroup = 128;          // G: columns that share a scale
constexpr int kMmaDigitRows = 4;     // activation rows of one mma: it has eight columns
constexpr int kDigitRowBytes = 256;  // a row's group: [high, low][column]

// A float32 whose last bits count in ones: a whole number below 2^22 that is added to it stands
// there, and one that is added to its bits comes back as a float. Sums over a group stay below:
// 128 columns of at most 255 times 128.
constexpr float kWholeBase = 12582912.0f;  // 1.5 2^23
constexpr int kWholeBaseBits = 0x4b400000;

// A scale is the bits of a power of two; this less its scale are those of the inverse.
constexpr uint32_t kInverse = 254u << 23;
constexpr uint32_t kScaleNotFinite = kInverse - 0x7fffffffu;  // whose inverse is NaN

template <typename T>
struct DigitCodec;

template <>
struct DigitCodec<__half> {
  static constexpr unsigned kMantissaBits = 10;
  static constexpr unsigned kBias = 15;
  static constexpr unsigned kLeast = 1;  // biased exponents below it count as it
  static constexpr unsigned kInfinity = 0x7c00;
  // Added to the bits of the largest: 2^e goes up where n would pass 32,639.
  static constexpr unsigned kNearNext = 8;

  using Two = __half2;

  static __device__ __forceinline__ void widen(uint32_t bits, float& first, float& second) {
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&bits));
    first = both.x;
    second = both.y;
  }
};

template <>
struct DigitCodec<__nv_bfloat16> {
  static constexpr unsigned kMantissaBits = 7;
  static constexpr unsigned kBias = 127;
  static constexpr unsigned kLeast = 15;  // so that both powers of two are ordinary floats
  static constexpr unsigned kInfinity = 0x7f80;
  static constexpr unsigned kNearNext = 1;

  using Two = __nv_bfloat162;

  static __device__ __forceinline__ void widen(uint32_t bits, float& first, float& second) {
    first = __uint_as_float(bits << 16);
    second = __uint_as_float(bits & 0xffff0000u);
  }
};

// Writes a row's group to p_row in shared memory, 256 bytes, and returns its scale, of which
// DigitTile knows what to make. All lanes call it, each with columns 4 i_lane .. + 3.
//
// Columns lie in the order of the nibbles of a packed word, 0 2 1 3 of every four. Halves of 16
// bytes change places in `low`, so that what lanes read together lies in different banks.
template <typename T>
__device__ __forceinline__ uint32_t write_digits(uint2 values, unsigned char* p_row, int i_lane) {
  using Codec = DigitCodec<T>;
  using Two = typename Codec::Two;
  // The bits of magnitudes are in the order of the magnitudes, what is not finite at the end.
  const Two of_lane = __hmax2_nan(__habs2(*reinterpret_cast<const Two*>(&values.x)),
                                  __habs2(*reinterpret_cast<const Two*>(&values.y)));
  const uint32_t two = *reinterpret_cast<const uint32_t*>(&of_lane);
  const uint32_t largest = warp_max(max(two & 0xffffu, two >> 16));
  // e, biased, where a float32 has its exponent.
  const uint32_t exponent =
      max(((largest + Codec::kNearNext) << (23 - Codec::kMantissaBits)) & 0x7f800000u,
          Codec::kLeast << 23);
  uint32_t scale = ((127u + 14 + Codec::kBias) << 23) - exponent;  // 2^(14 - e)
  float x[4];
  Codec::widen(values.x, x[0], x[1]);
  Codec::widen(values.y, x[2], x[3]);
  uint32_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // n + 128: its second byte is `high`, its first one `low` + 128.
    bits[i] = __float_as_uint(fmaf(x[i], __uint_as_float(scale), kWholeBase + 128.0f));
  }
  const uint32_t even = __byte_perm(bits[0], bits[2], 0x5140);
  const uint32_t odd = __byte_perm(bits[1], bits[3], 0x5140);
  uint32_t* p_words = reinterpret_cast<uint32_t*>(p_row);
  p_words[i_lane] = __byte_perm(even, odd, 0x7632);
  p_words[kWarp + (i_lane ^ 4)] = __byte_perm(even, odd, 0x5410) ^ 0x80808080u;
  return largest < Codec::kInfinity ? scale : kScaleNotFinite;
}

// kRows rows of one group as B fragments of mma.m16n8k32. Columns of B: 2 (row % 4) + digit, in as
// many sets as rows need. A lane of a quad owns 32 adjacent columns of the matrix, eight a step.
template <int kRows>
struct DigitTile {
  static constexpr int kSets = (kRows + kMmaDigitRows - 1) / kMmaDigitRows;

  uint4 values[kSets][2];
  float ones[kSets];  // of row i_lane % 4 + 4 i_set: what n = 1 stands for; NaN if not finite

  __device__ __forceinline__ void set_scales(const uint32_t (&scales)[kRows], int i_lane) {
#pragma unroll
    for (int i_set = 0; i_set < kSets; ++i_set) {
      const auto either = [&](int i) {
        const uint32_t even = scales[min(kMmaDigitRows * i_set + i, kRows - 1)];
        const uint32_t odd = scales[min(kMmaDigitRows * i_set + i + 1, kRows - 1)];
        return i_lane % 2 == 0 ? even : odd;
      };
      const uint32_t scale = i_lane % 4 < 2 ? either(0) : either(2);
      ones[i_set] = __uint_as_float(kInverse - scale);
    }
  }

  // p_rows: [row][256 bytes], in shared memory, written by all lanes. Columns of B that belong to
  // no row are zero: they meet no other.
  __device__ __forceinline__ void read(const unsigned char* p_rows, int i_lane) {
    const int i_digit = i_lane / 4 % 2;
#pragma unroll
    for (int i_set = 0; i_set < kSets; ++i_set) {
      const int i_row = i_lane / 8 + kMmaDigitRows * i_set;
      const unsigned char* p = p_rows + i_row * kDigitRowBytes + i_digit * kGroup + i_lane % 4 * 32;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        values[i_set][i] = i_row < kRows ? *reinterpret_cast<const uint4*>(p + 16 * (i ^ i_digit))
                                         : make_uint4(0, 0, 0, 0);
      }
    }
  }

  __device__ __forceinline__ void fragment(int i_set, int i_step, uint32_t (&b)[2]) const {
    const uint4& v = values[i_set][i_step / 2];
    b[0] = i_step % 2 == 0 ? v.x : v.z;
    b[1] = i_step % 2 == 0 ? v.y : v.w;
  }
};

// The rows' groups as a tile, by way of p_rows in shared memory: kRows times 256 bytes, for this
// warp alone. values: of each row this lane's columns, 4 i_lane .. + 3.
template <typename T, int kRows>
__device__ __forceinline__ DigitTile<kRows> to_digits(const uint2* values,
                                                      unsigned char* p_rows,
                                                      int i_lane) {
  DigitTile<kRows> x;
  __syncwarp();  // every lane has read what lay there before
  uint32_t scales[kRows];
#pragma unroll
  for (int i_row = 0; i_row < kRows; ++i_row) {
    scales[i_row] = write_digits<T>(values[i_row], p_rows + i_row * kDigitRowBytes, i_lane);
  }
  x.set_scales(scales, i_lane);
  __syncwarp();
  x.read(p_rows, i_lane);
  return x;
}

}  // namespace bytebound
