// Keeps a value that is not finite in the rows that see it.
//
// Of the rows of one call, row r does not see the positions of the rows after it. Its weight for
// them is 0, but 0 * NaN is NaN. So in the one or two tiles that hold such positions, what is not
// finite among their values becomes 0 and a mark, and a marked dim becomes NaN for the queries that
// see it. With a float8 cache nothing of this is needed: there NaN sits in the scale.
#pragma once

#include "attention_tile.cuh"

namespace bytebound {

constexpr int kMaxRows = 8;                         // of one call
constexpr int kMarkWords = kHeadDim / 32;           // one bit for each dim
using ValueMarks = uint32_t[kMaxRows][kMarkWords];  // zeroed when the kernel starts

// Between the arrival of the tile `first` .. and the barrier before add_tile. `position` is that of
// row 0, `last` that of the last row.
template <typename Cache>
__device__ __forceinline__ void mark_unseen_values(
    unsigned char* p_stage, ValueMarks& marks, int first, int position, int last) {
  const int i_begin = max(position + 1, first);
  const int i_end = min(last + 1, first + Cache::kTile);
  for (int i = i_begin; i < i_end; ++i) {
    const int row = i - first;
    const int chunk = Cache::swizzle_value(row, tile_thread() / 4);
    auto* p_pair = reinterpret_cast<uint32_t*>(p_stage + TileStage<Cache>::kValues +
                                               row * Cache::kRowBytes + chunk * kChunkBytes) +
                   threadIdx.x % 4;
    uint32_t pair = *p_pair;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t exponent = Cache::kExponent << (16 * j);
      if ((pair & exponent) == exponent) {
        pair &= 0xffffu << (16 * (1 - j));
        const int dim = 2 * tile_thread() + j;
        atomicOr(&marks[i - position][dim / 32], 1u << (dim % 32));
      }
    }
    *p_pair = pair;
  }
}

// After add_tile, with the same `sees`.
template <int kQueries>
__device__ __forceinline__ void spoil_marked_dims(AttentionState<kQueries>& state,
                                                  const ValueMarks& marks,
                                                  int position,
                                                  const SeenPositions<kQueries>& sees) {
  const int i_warp = tile_warp();
  const int i_pair = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < state.kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < state.kHalves; ++h) {
      uint32_t words[2] = {0, 0};
      for (int r = 1; position + r <= sees[m][h] && r < kMaxRows; ++r) {
        words[0] |= marks[r][2 * i_warp];
        words[1] |= marks[r][2 * i_warp + 1];
      }
#pragma unroll
      for (int i = 0; i < kWarpColumns; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i_bit = (8 * i) % 32 + 2 * i_pair + e;
          if (words[i / 4] >> i_bit & 1u) {
            state.out[m][i][2 * h + e] = __int_as_float(0x7fffffff);
          }
        }
      }
    }
  }
}

}  // namespace bytebound
