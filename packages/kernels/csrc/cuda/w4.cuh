// Four-bit weights: how they lie in memory, and their product with a few activation rows.
//
// A matrix [N, K] is cut into items of 64 rows and one group of 128 columns. An item is four tiles
// of 16 rows, each the A operand of eight mma.m16n8k16, followed by what a group needs:
//
//   byte 0      512 q + 16 lane   the words of tile q / 2, steps 4 (q % 2) .. + 3, of one lane
//   byte 4096   16 i_quad         scales [tile][row i_quad, row i_quad + 8], two bytes each
//   byte 4224   4 i_quad          zero points, four bits each, in the same order (asymmetric only)
//
// A word holds eight 4-bit numbers, the A fragment of one mma.m16n8k16: bits 0, 16 are a[0]; 4, 20
// a[1]; 8, 24 a[2]; 12, 28 a[3]. The sum over k may run in any order as long as A and B agree on
// it, so a lane takes 32 adjacent columns of the group, 4 per word: what it needs of an activation
// row are adjacent bytes.
//
// Read as bytes, the same word is half an A fragment of mma.m16n8k32: its lower nibbles are columns
// 0 2 1 3 of row i_quad, and the whole bytes 16 times those of row i_quad + 8, plus those of row
// i_quad: they are multiplied as they are, and the difference of two whole sums is 16 times the
// upper row's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "async_copy.cuh"
#include "digits.cuh"
#include "matvec.cuh"
#include "mma.cuh"
#include "streamed.cuh"

namespace bytebound {

constexpr int kTileRows = 16;  // rows of one mma
constexpr int kItemTiles = 4;  // tiles of an item
constexpr int kItemRows = kTileRows * kItemTiles;
constexpr int kItemSteps = 8;   // words of a lane per tile and group
constexpr int kMmaColumns = 8;  // of B
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

// Whole-number sums of one tile: [set][lower row: high, low; whole bytes: high, low].
template <int kSets>
using DigitSums = int[kSets][4];

// The sum of the digits of this lane's row of each set: what a zero point of 1 takes off.
template <int kRows>
__device__ __forceinline__ void sum_digits(const DigitTile<kRows>& x,
                                           int (&sums)[DigitTile<kRows>::kSets][2]) {
  constexpr uint32_t kOnes = 0x01010101u;
  const uint32_t a[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
  for (int i_set = 0; i_set < DigitTile<kRows>::kSets; ++i_set) {
    int c[4] = {};
#pragma unroll
    for (int i_step = 0; i_step < kItemSteps / 2; ++i_step) {
      uint32_t b[2];
      x.fragment(i_set, i_step, b);
      mma_m16n8k32(c, a, b);
    }
    sums[i_set][0] = c[0];
    sums[i_set][1] = c[1];
  }
}

// sums += the product of an item with x, [tile][lower rows of every set, upper rows], of activation
// row i_lane % 4 + 4 i_set; upper ones times 16. An item gives what this lane has of it: words(i),
// i < 8, 16 bytes each; scales(i_tile), two of two bytes; zeros(), [tile][lower, upper row] of four
// bits. after(i_tile) is called when the words of the tile have been used.
template <bool kAsymmetric, int kRows, typename Item, typename After>
__device__ __forceinline__ void add_product(const Item& item,
                                            bool bfloat16_scales,
                                            const DigitTile<kRows>& x,
                                            float (&sums)[kItemTiles][2 * DigitTile<kRows>::kSets],
                                            After after) {
  constexpr int kSets = DigitTile<kRows>::kSets;
  // Tiles whose mma do not wait for each other; of more rows the sums are too many for the
  // registers, and two sets take turns.
  constexpr int kAtOnce = kRows <= (kAsymmetric ? 4 : 5) ? 2 : 1;
  int x_sums[kSets][2];
  sum_digits(x, x_sums);
#pragma unroll
  for (int i_first = 0; i_first < kItemTiles; i_first += kAtOnce) {
    DigitSums<kSets> c[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      // Two zero points make a byte as two numbers do.
      const int zeros = kAsymmetric ? item.zeros() >> (8 * (i_first + j)) & 255 : 0x88;
#pragma unroll
      for (int i_set = 0; i_set < kSets; ++i_set) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          c[j][i_set][i] = kWholeBaseBits - (i < 2 ? zeros & 15 : zeros) * x_sums[i_set][i % 2];
        }
      }
    }
#pragma unroll
    for (int i_step = 0; i_step < kItemSteps / 2; ++i_step) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const uint4& words = item.words(2 * (i_first + j) + i_step / 2);
        const uint32_t first = word_of(words, i_step % 2 * 2);
        const uint32_t second = word_of(words, i_step % 2 * 2 + 1);
        const uint32_t a[4] = {first & 0x0f0f0f0fu, first, second & 0x0f0f0f0fu, second};
#pragma unroll
        for (int i_set = 0; i_set < kSets; ++i_set) {
          uint32_t b[2];
          x.fragment(i_set, i_step, b);
          mma_m16n8k32(c[j][i_set], a, b);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      after(i_first + j);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i_tile = i_first + j;
      float lower;
      float upper;
      unpack_scales(item.scales(i_tile), bfloat16_scales, lower, upper);
#pragma unroll
      for (int i_set = 0; i_set < kSets; ++i_set) {
        float whole[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          whole[i] = __int_as_float(c[j][i_set][i]);
        }
        // Differences of whole numbers below 2^24: exact.
        const float dot_lower = fmaf(whole[0] - kWholeBase, 256.0f, whole[1] - kWholeBase);
        const float dot_upper = fmaf(whole[2] - whole[0], 256.0f, whole[3] - whole[1]);
        float (&sum)[2 * kSets] = sums[i_tile];
        sum[i_set] = fmaf(lower * x.ones[i_set], dot_lower, sum[i_set]);
        sum[kSets + i_set] = fmaf(upper * x.ones[i_set], dot_upper, sum[kSets + i_set]);
      }
    }
  }
}

// kRows rows of activations for the item at hand, and those of the next one on their way.
template <typename T, int kRows, bool kAsymmetric>
class DigitActivations {
 public:
  static constexpr int kSharedRowBytes = kDigitRowBytes;  // of a warp

  // p_shared: kRows times that, for this warp alone.
  __device__ __forceinline__ DigitActivations(unsigned char* p_shared, int i_lane)
      : p_shared_(p_shared), i_lane_(i_lane) {}

  __device__ __forceinline__ void ahead(const T* p_columns,
                                        std::int64_t row_stride,
                                        int /* kRows */) {
    p_lane_ = p_columns + 4 * i_lane_;
    row_stride_ = row_stride;
    load<0, kAhead>();
  }

  // The rows that ahead() was last told of.
  __device__ __forceinline__ DigitTile<kRows> take() {
    load<kAhead, kRows>();
    return to_digits<T, kRows>(values_, p_shared_, i_lane_);
  }

 private:
  // Rows that are asked for ahead of time; where registers are short, others when they are needed.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
  static constexpr int kAhead = kRows < 5 ? kRows : kAsymmetric ? 2 : kRows == 5 ? 5 : 4;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  static constexpr int kAhead = kRows == 5 && !kAsymmetric ? 3 : kRows;
#else
  static constexpr int kAhead = kRows;
#endif

  // Not through the constant path: an earlier kernel may have written these bytes while this one
  // already ran.
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i_row = kFirst; i_row < kEnd; ++i_row) {
      values_[i_row] = *reinterpret_cast<const uint2*>(p_lane_ + i_row * row_stride_);
    }
  }

  unsigned char* p_shared_;
  int i_lane_;
  const T* p_lane_ = nullptr;
  std::int64_t row_stride_ = 0;
  uint2 values_[kRows];
};

// The items of a packed matrix, as cuda/matvec.cuh walks them, for kNumRows activation rows.
template <typename T, bool kAsymmetric, int kNumRows_>
class W4Weights {
 public:
  using Activation = T;
  using Activations = DigitActivations<T, kNumRows_, kAsymmetric>;
  using X = DigitTile<kNumRows_>;
  struct Source {
    const unsigned char* p_items;  // 16-byte aligned
    bool bfloat16_scales;
  };
  static constexpr int kNumRows = kNumRows_;
  static constexpr int kRows = kItemRows;
  static constexpr int kTiles = kItemTiles;
  static constexpr int kColumns = kGroup;
  static constexpr int kLaneRows = X::kSets;
  static constexpr float kFactor = 1.0f;
  static constexpr float kFactorUpper = 0.0625f;

  static __device__ __forceinline__ int row(int i_lane, int i) {
    return i_lane % kMmaDigitRows + kMmaDigitRows * i;
  }

  __device__ __forceinline__
  W4Weights(const Source& source, int /* num_groups */, int start, int i_lane)
      : p_item_(source.p_items + static_cast<std::int64_t>(start) * kBytes),
        bfloat16_scales_(source.bfloat16_scales),
        i_lane_(i_lane) {}

  __device__ __forceinline__ void load_first() {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      load_words(i);
    }
    load_parameters();
  }

  // Asks the L2 for the item behind the first one, of a share of num_items.
  __device__ __forceinline__ void prefetch_second(int num_items) const {
    if (num_items > 1 && i_lane_ == 0) {
      prefetch_bytes(p_item_ + kBytes, kBytes);
    }
  }

  // sums += the product of the current item with x; goes on to the next item. As soon as tiles have
  // been used, their registers take the loads of the next item: nearly all of an item is under way
  // all the time.
  __device__ __forceinline__ void accumulate(const X& x,
                                             float (&sums)[kTiles][2 * kLaneRows],
                                             bool has_next) {
    const uint4 scales = scales_;
    const uint32_t zeros = zeros_;
    p_item_ += kBytes;
    if (has_next) {
      load_parameters();
    }
    const Held item{words_, scales, zeros};
    add_product<kAsymmetric>(item, bfloat16_scales_, x, sums, [&](int i_tile) {
      if (has_next) {
        load_words(2 * i_tile);
        load_words(2 * i_tile + 1);
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
  bool bfloat16_scales_;
  int i_lane_;
  uint4 words_[kLoads];
  uint4 scales_;        // [tile][lower, upper row], two bytes each
  uint32_t zeros_ = 0;  // [tile][lower, upper row], four bits each
};

}  // namespace bytebound
