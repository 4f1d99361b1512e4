// 16-bit weights in the ordinary layout, row after row, and their product with a few rows.
//
// A matrix [N, K] is cut into items of 16 rows and 64 or 128 columns, the A operands of four or
// eight mma.m16n8k16. A load of a warp takes 16 bytes per lane, 64 adjacent bytes of 8 rows:
//
//               columns 0 .. 31           columns 32 .. 63          ...
//   row 0       lane 0   1   2   3        lane 0   1   2   3
//   row 1       lane 4   5   6   7        lane 4   5   6   7        i_quad = lane / 4: the row
//   ...                                                             i_pair = lane % 4: 8 columns
//   row 7       lane 28  29  30  31       lane 28  29  30  31
//
// and the same of rows 8 .. 15. The eight columns of a lane feed two mma, four each. The sum over k
// may run in any order as long as A and B agree: the activations are read by the same map.
//
// An item has 16 rows of one matrix, or 8 rows of each of two (the gate and the up matrix of an
// MLP), which then are the lower and the upper row of each pair of the epilogue.
#pragma once

#include <cstdint>

#include "matvec.cuh"
#include "mma.cuh"
#include "streamed.cuh"

namespace bytebound {

// The activations of one item's columns as B fragments. Lane i_pair of a quad owns kColumns / 4
// adjacent columns, four per step: what it needs of a row are adjacent bytes.
template <typename T, int kColumns>
struct ActivationTile {
  static constexpr int kLaneChunks = kColumns / 32;  // 16-byte chunks of a row, of one lane

  uint4 values[kLaneChunks];

  // Rows from num_rows on are zero: they only meet their own columns of C. Not a read through the
  // constant path: an earlier kernel may have written these bytes while this one already ran.
  __device__ __forceinline__ void load(const T* p_columns,
                                       std::int64_t row_stride,
                                       int num_rows,
                                       int i_lane) {
    const int i_row = i_lane / 4;
    const T* p_lane = p_columns + i_row * row_stride + i_lane % 4 * (kColumns / 4);
#pragma unroll
    for (int j = 0; j < kLaneChunks; ++j) {
      values[j] =
          i_row < num_rows ? reinterpret_cast<const uint4*>(p_lane)[j] : make_uint4(0, 0, 0, 0);
    }
  }

  // B of one step.
  __device__ __forceinline__ void fragment(int i_step, uint32_t (&b)[2]) const {
    const uint4& v = values[i_step / 2];
    b[0] = i_step % 2 == 0 ? v.x : v.z;
    b[1] = i_step % 2 == 0 ? v.y : v.w;
  }
};

// The activations of an item's columns, 32 at a time.
template <typename T, int kColumns>
struct DenseTile {
  static constexpr int kParts = kColumns / 32;
  ActivationTile<T, 32> parts[kParts];
};

// They are read when they are needed: a load that a warp waits for hides behind the weights.
template <typename T, int kColumns>
class DenseActivations {
 public:
  static constexpr int kSharedRowBytes = 0;

  __device__ __forceinline__ DenseActivations(unsigned char* /* p_shared */, int i_lane)
      : i_lane_(i_lane) {}

  __device__ __forceinline__ void ahead(const T* p_columns, std::int64_t row_stride, int num_rows) {
    p_columns_ = p_columns;
    row_stride_ = row_stride;
    num_rows_ = num_rows;
  }

  __device__ __forceinline__ DenseTile<T, kColumns> take() const {
    DenseTile<T, kColumns> x;
#pragma unroll
    for (int i = 0; i < x.kParts; ++i) {
      x.parts[i].load(p_columns_ + 32 * i, row_stride_, num_rows_, i_lane_);
    }
    return x;
  }

 private:
  int i_lane_;
  const T* p_columns_ = nullptr;
  std::int64_t row_stride_ = 0;
  int num_rows_ = 0;
};

// The items of a matrix of T, as cuda/matvec.cuh walks them. kColumns is 64 or 128: the longer the
// adjacent bytes that a warp asks for at a time, the better for the memory.
template <typename T, int kItemColumns>
class DenseWeights {
 public:
  using Activation = T;
  using Activations = DenseActivations<T, kItemColumns>;
  using X = DenseTile<T, kItemColumns>;
  struct Source {
    const T* p_lower;           // [N, K], rows 16-byte aligned: lower rows of an item
    const T* p_upper;           // upper rows: the same matrix, or the second one
    std::int64_t lower_stride;  // in elements, from row to row
    std::int64_t upper_stride;
    int n;          // rows of each matrix
    int item_rows;  // 16 of one matrix, or 8 of each of two
  };
  static constexpr int kNumRows = 0;  // any, up to eight
  static constexpr int kRows = 16;
  static constexpr int kTiles = 1;
  static constexpr int kColumns = kItemColumns;
  static constexpr int kLaneRows = 2;
  static constexpr float kFactor = 1.0f;
  static constexpr float kFactorUpper = 1.0f;

  static __device__ __forceinline__ int row(int i_lane, int i) { return i_lane % 4 * 2 + i; }

  __device__ __forceinline__
  DenseWeights(const Source& source, int num_groups, int start, int i_lane)
      : source_(source), num_groups_(num_groups), i_lane_(i_lane) {
    i_row_block_ = start / num_groups;
    i_group_ = start - i_row_block_ * num_groups;
    find_rows();
  }

  // Its rows lie apart: many small requests.
  __device__ __forceinline__ void prefetch_second(int /* num_items */) const {}

  __device__ __forceinline__ void load_first() {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      load_part(i);
    }
  }

  // sums += the product of the current item with x; goes on to the next item. As soon as 64 columns
  // have been used, their registers take the loads of the next item: at least half of an item is
  // under way all the time.
  __device__ __forceinline__ void accumulate(const X& x, float (&sums)[kTiles][4], bool has_next) {
    go_on();
    // Two sums in turn, since an mma that waits for the one before it is slow. They begin at zero
    // in each item: the tensor core cuts off what the additions below round to nearest.
    float c[2][4] = {};
#pragma unroll
    for (int i_two = 0; i_two < kParts; i_two += 2) {
#pragma unroll
      for (int i = i_two; i < i_two + 2; ++i) {
        const uint4& lower = lower_[i];
        const uint4& upper = upper_[i];
        const uint32_t first[4] = {lower.x, upper.x, lower.y, upper.y};
        const uint32_t second[4] = {lower.z, upper.z, lower.w, upper.w};
        uint32_t b[2];
        x.parts[i].fragment(0, b);
        mma_m16n8k16(c[0], first, b, T());
        x.parts[i].fragment(1, b);
        mma_m16n8k16(c[1], second, b, T());
      }
      if (has_next) {
        load_part(i_two);
        load_part(i_two + 1);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[0][i] += c[0][i] + c[1][i];
    }
  }

 private:
  static constexpr int kParts = X::kParts;

  // The next item's columns and rows.
  __device__ __forceinline__ void go_on() {
    if (++i_group_ == num_groups_) {
      i_group_ = 0;
      ++i_row_block_;
      find_rows();
    }
  }

  // This lane's two rows of the current row block. Beyond the matrix it is the last row once more,
  // whose products are not stored.
  __device__ __forceinline__ void find_rows() {
    const int i_row = i_row_block_ * source_.item_rows + i_lane_ / 4;
    const int i_upper = i_row + source_.item_rows - 8;
    const int last = source_.n - 1;
    p_lower_ = source_.p_lower + min(i_row, last) * source_.lower_stride + i_lane_ % 4 * 8;
    p_upper_ = source_.p_upper + min(i_upper, last) * source_.upper_stride + i_lane_ % 4 * 8;
  }

  __device__ __forceinline__ void load_part(int i) {
    lower_[i] = load_streamed(p_lower_ + i_group_ * kColumns + 32 * i);
    upper_[i] = load_streamed(p_upper_ + i_group_ * kColumns + 32 * i);
  }

  const Source& source_;
  int num_groups_;
  int i_lane_;
  int i_row_block_;
  int i_group_;
  const T* p_lower_;
  const T* p_upper_;
  uint4 lower_[kParts] = {};
  uint4 upper_[kParts] = {};
};

}  // namespace bytebound
