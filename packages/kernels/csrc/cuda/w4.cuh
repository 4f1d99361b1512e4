// Four-bit weights: how they lie in memory, and their product with a few activation rows.
//
// A matrix [N, K] is cut into items of 64 rows and one group of 128 columns. An item is four tiles
// of 16 rows, each the A operand of eight mma.m16n8k16, followed by what a group needs:
//
//   byte 0      512 q + 16 lane   the words of tile q / 2, steps 4 (q % 2) .. + 3, of one lane
//   byte 4096   16 i_quad         scales [tile][row i_quad, row i_quad + 8], two bytes each
//   byte 4224   4 i_quad          zero points, four bits each, in the same order (asymmetric only)
//
// A word holds eight 4-bit numbers, the A fragment of one step: bits 0, 16 are a[0]; 4, 20 a[1];
// 8, 24 a[2]; 12, 28 a[3]. The sum over k may run in any order as long as A and B agree on it, so a
// lane takes 32 adjacent columns of the group, 4 per step: what it needs of an activation row is 64
// adjacent bytes, in the order in which they lie in the row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "matvec.cuh"
#include "mma.cuh"
#include "streamed.cuh"

namespace bytebound {

constexpr int kGroup = 128;    // G: columns that share a scale
constexpr int kTileRows = 16;  // rows of one mma
constexpr int kItemTiles = 4;  // tiles of an item
constexpr int kItemRows = kTileRows * kItemTiles;
constexpr int kItemSteps = 8;   // mma per tile and group
constexpr int kMmaColumns = 8;  // activation rows of one mma
constexpr int kWordBytes = kItemRows * kGroup / 2;
constexpr int kScaleBytes = kItemRows * 2;
constexpr int kZeroBytes = kItemRows / 2;

__host__ __device__ constexpr int item_bytes(bool asymmetric) {
  return kWordBytes + kScaleBytes + (asymmetric ? kZeroBytes : 0);
}

// How the four-bit numbers of a word become A fragments, for each type of activation.
template <typename T>
struct W4Codec;

// The low bits of a float16 are q 2^-24 (subnormal, exact), and four bits higher 16 q 2^-24: one
// logic operation for two numbers, without any subtraction. Tensor cores take subnormals at full
// speed. The factors are put right once, in the finished sum.
template <>
struct W4Codec<__half> {
  static constexpr uint32_t kOne = 0x00010001u;       // 1 as rows i_quad hold it
  static constexpr uint32_t kOneUpper = 0x00100010u;  // 1 as rows i_quad + 8 hold it
  static constexpr float kOffset = 0.0f;              // what is stored for q = 0
  static constexpr float kFactor = 16777216.0f;       // 2^24, for rows i_quad
  static constexpr float kFactorUpper = 1048576.0f;   // 2^20, for rows i_quad + 8

  static __device__ __forceinline__ void decode(uint32_t word, uint32_t (&a)[4]) {
    const uint32_t next = word >> 8;
    a[0] = word & 0x000f000fu;
    a[1] = word & 0x00f000f0u;
    a[2] = next & 0x000f000fu;
    a[3] = next & 0x00f000f0u;
  }
};

// bfloat16 has too few mantissa bits for that: 128 + q is exact, and 128 is subtracted as part of
// the zero point.
template <>
struct W4Codec<__nv_bfloat16> {
  static constexpr uint32_t kOne = 0x3f803f80u;
  static constexpr uint32_t kOneUpper = 0x3f803f80u;
  static constexpr float kOffset = 128.0f;
  static constexpr float kFactor = 1.0f;
  static constexpr float kFactorUpper = 1.0f;

  static __device__ __forceinline__ void decode(uint32_t word, uint32_t (&a)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      a[j] = ((word >> (4 * j)) & 0x000f000fu) | 0x43004300u;
    }
  }
};

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Two scales of one tile, from their stored bits.
__device__ __forceinline__ void unpack_scales(uint32_t bits,
                                              bool bfloat16_scales,
                                              float& lower,
                                              float& upper) {
  if (bfloat16_scales) {
    lower = __uint_as_float(bits << 16);
    upper = __uint_as_float(bits & 0xffff0000u);
  } else {
    const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&bits));
    lower = both.x;
    upper = both.y;
  }
}

// The sum over the group of each activation row, in the unit in which the tiles' sums are: what a
// zero point of 1 takes off.
template <typename T>
__device__ __forceinline__ void sum_columns(const ActivationTile<T, kGroup>& x, float (&sums)[4]) {
  const uint32_t ones[4] = {W4Codec<T>::kOne, W4Codec<T>::kOneUpper, W4Codec<T>::kOne,
                            W4Codec<T>::kOneUpper};
  float c[2][4] = {};
#pragma unroll
  for (int i_step = 0; i_step < kItemSteps; ++i_step) {
    uint32_t b[2];
    x.fragment(i_step, b);
    mma_m16n8k16(c[i_step % 2], ones, b, T());
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    sums[j] = c[0][j] + c[1][j];
  }
}

// sums += the product of an item with x. An item gives what this lane has of it: words(i), i < 8,
// 16 bytes each; scales(i_tile), two of two bytes; zeros(), [tile][lower, upper row] of four bits.
// after_two(i) is called when the words of tiles i and i + 1 have been used.
template <typename T, bool kAsymmetric, typename Item, typename AfterTwo>
__device__ __forceinline__ void add_product(const Item& item,
                                            bool bfloat16_scales,
                                            const ActivationTile<T, kGroup>& x,
                                            float (&sums)[kItemTiles][4],
                                            AfterTwo after_two) {
  float x_sums[4];
  sum_columns(x, x_sums);
#pragma unroll
  for (int i_two = 0; i_two < kItemTiles; i_two += 2) {
    // Two tiles at a time, since an mma that waits for the one before it is slow.
    float c[2][4] = {};
#pragma unroll
    for (int i_step = 0; i_step < kItemSteps; ++i_step) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t a[4];
        const uint4& words = item.words(2 * (i_two + j) + i_step / 4);
        W4Codec<T>::decode(word_of(words, i_step % 4), a);
        uint32_t b[2];
        x.fragment(i_step, b);
        mma_m16n8k16(c[j], a, b, T());
      }
    }
    after_two(i_two);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i_tile = i_two + j;
      float lower;
      float upper;
      unpack_scales(item.scales(i_tile), bfloat16_scales, lower, upper);
      float zero_lower = 8.0f + W4Codec<T>::kOffset;
      float zero_upper = zero_lower;
      if (kAsymmetric) {
        const uint32_t zeros = item.zeros();
        zero_lower = static_cast<float>((zeros >> (8 * i_tile)) & 15u) + W4Codec<T>::kOffset;
        zero_upper = static_cast<float>((zeros >> (8 * i_tile + 4)) & 15u) + W4Codec<T>::kOffset;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float dot = fmaf(i < 2 ? -zero_lower : -zero_upper, x_sums[i], c[j][i]);
        sums[i_tile][i] = fmaf(i < 2 ? lower : upper, dot, sums[i_tile][i]);
      }
    }
  }
}

// The items of a packed matrix, as cuda/matvec.cuh walks them.
template <typename T, bool kAsymmetric>
class W4Weights {
 public:
  using Activation = T;
  using X = ActivationTile<T, kGroup>;
  struct Source {
    const unsigned char* p_items;  // 16-byte aligned
    bool bfloat16_scales;
  };
  static constexpr int kRows = kItemRows;
  static constexpr int kTiles = kItemTiles;
  static constexpr int kColumns = kGroup;
  static constexpr float kFactor = W4Codec<T>::kFactor;
  static constexpr float kFactorUpper = W4Codec<T>::kFactorUpper;

  __device__ __forceinline__
  W4Weights(const Source& source, int /* num_groups */, int start, int end, int i_lane)
      : p_item_(source.p_items + static_cast<std::int64_t>(start) * kBytes),
        num_left_(end - start),
        bfloat16_scales_(source.bfloat16_scales),
        i_lane_(i_lane) {}

  __device__ __forceinline__ void load_first() {
    if (num_left_ > 0) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        load_words(i);
      }
      load_parameters();
    }
  }

  // sums += the product of the current item with x; goes on to the next item. As soon as two tiles
  // have been used, their registers take the loads of the next item: nearly all of an item is under
  // way all the time.
  __device__ __forceinline__ void accumulate(const X& x, float (&sums)[kTiles][4]) {
    const uint4 scales = scales_;
    const uint32_t zeros = zeros_;
    p_item_ += kBytes;
    --num_left_;
    const bool has_next = num_left_ > 0;
    if (has_next) {
      load_parameters();
    }
    const Held item{words_, scales, zeros};
    add_product<T, kAsymmetric>(item, bfloat16_scales_, x, sums, [&](int i_two) {
      if (has_next) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          load_words(2 * i_two + i);
        }
      }
    });
  }

 private:
  static constexpr int kBytes = item_bytes(kAsymmetric);
  static constexpr int kLoads = kWordBytes / 512;  // of 16 bytes, per lane

  // An item in registers.
  struct Held {
    const uint4 (&b_words)[kLoads];
    uint4 b_scales;
    uint32_t b_zeros;

    __device__ __forceinline__ const uint4& words(int i) const { return b_words[i]; }
    __device__ __forceinline__ uint32_t scales(int i_tile) const {
      return word_of(b_scales, i_tile);
    }
    __device__ __forceinline__ uint32_t zeros() const { return b_zeros; }
  };

  __device__ __forceinline__ void load_words(int i) {
    words_[i] = load_streamed(p_item_ + i * 512 + i_lane_ * 16);
  }
  __device__ __forceinline__ void load_parameters() {
    const int i_quad = i_lane_ / 4;
    scales_ = load_streamed(p_item_ + kWordBytes + i_quad * 16);
    if (kAsymmetric) {
      zeros_ = load_streamed_word(p_item_ + kWordBytes + kScaleBytes + i_quad * 4);
    }
  }

  const unsigned char* p_item_;
  int num_left_;
  bool bfloat16_scales_;
  int i_lane_;
  uint4 words_[kLoads];
  uint4 scales_;        // [tile][lower, upper row], two bytes each
  uint32_t zeros_ = 0;  // [tile][lower, upper row], four bits each
};

}  // namespace bytebound
