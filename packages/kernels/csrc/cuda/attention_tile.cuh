// Attention of a block of queries to one tile of cached positions, on tensor cores.
//
// A tile is 16 KB of keys and 16 KB of values of one kv head. The block's four warps divide it
// twice:
//
//   scores = Q K^T     warp w: its own quarter of the tile's positions, all 256 dims
//   out   += P V       warp w: all positions, dims 64 w .. 64 w + 63
//
// In between each warp leaves its scores in shared memory, over the keys that it alone has read,
// and after one barrier every warp reads all of them in the operand layout of P and computes the
// softmax for itself: four times the exponentials, but no second exchange.
//
// A cache type says how a row lies in shared memory (swizzled so that no access has a bank
// conflict) and how it becomes mma operands. The order of the dims inside a product of Q and K is
// free as long as both agree on it; so is the naming of the output columns of P V.
//
// A query has the same bits with any number of others, so with any kQueries. Therefore every
// operation whose result is rounded is an intrinsic here: from "*" and "+" the compiler makes a
// multiply-add in one instantiation (where a loop is unrolled) and not in the other.
#pragma once

#include <cstdint>
#include <type_traits>

#include "async_copy.cuh"
#include "exp2.cuh"
#include "float8.cuh"
#include "load_matrix.cuh"
#include "mma.cuh"
#include "reduce.cuh"

namespace bytebound {

constexpr int kHeadDim = 256;
constexpr int kTileWarps = 4;
constexpr int kTileThreads = kTileWarps * kWarp;
constexpr int kWarpDims = kHeadDim / kTileWarps;  // of the output
constexpr int kWarpColumns = kWarpDims / 8;       // n tiles of the output
constexpr int kQuerySteps = kHeadDim / 16;        // k steps of Q K^T
constexpr int kStepsPerLoad = 2;                  // of them, whose keys come with one load
constexpr int kTileBytes = 16 << 10;              // of the keys, and of the values
constexpr int kChunkBytes = 16;
constexpr int kMaxQueries = 48;  // of one block: what fits the registers

// A block serves kQueries = 8, 16, 32 or 48 queries: tiles of 16 rows, of which both halves or,
// with 8 queries, the first one alone have softmax work.
__host__ __device__ constexpr int query_tiles(int queries) {
  return (queries + 15) / 16;
}
__host__ __device__ constexpr int query_halves(int queries) {
  return queries < 16 ? 1 : 2;
}

constexpr float kMinusInfinity = -__builtin_huge_valf();

// Where the A operand of a lane lies, among those of all k steps of a tile of queries. A query is
// stored by lanes that hold a step's dims each, and without the swizzle all would meet one bank.
__device__ __forceinline__ int operand_at(int i_step, int i_lane) {
  return i_step * kWarp + (i_lane ^ i_step % 8);
}

__device__ __forceinline__ uint32_t pack_pair(float low, float high, __half /* type */) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t pack_pair(float low, float high, __nv_bfloat16 /* type */) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// float16 or bfloat16: operands come by ldmatrix, in the natural order of dims.
//
// Here and below a swizzled chunk is a lane's own, which is the same in every step, with bits of
// the step flipped in its address: stages lie at multiples of 128 bytes.
template <typename T>
struct WideCache {
  using Compute = T;
  static constexpr bool kScaled = false;
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kTile = kTileBytes / kRowBytes;  // 32 positions
  // All of its bits are set in what is infinite or NaN.
  static constexpr uint32_t kExponent = std::is_same<T, __half>::value ? 0x7c00u : 0x7f80u;

  static __device__ __forceinline__ int swizzle_key(int row, int chunk) {
    return chunk ^ (row & 7);
  }
  static __device__ __forceinline__ int swizzle_value(int row, int chunk) {
    return chunk ^ (row & 7);
  }

  // Stores the eight dims of chunk i_chunk of query i_row, packed in pairs, as their part of the A
  // operands [kQuerySteps][lane][4] of the query's tile.
  static __device__ __forceinline__ void store_query(uint32_t* p_tile,
                                                     int i_row,
                                                     int i_chunk,
                                                     const uint4& packed) {
    const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int i_to = operand_at(i_chunk / 2, i_row % 8 * 4 + i);
      p_tile[4 * i_to + i_row / 8 + 2 * (i_chunk % 2)] = pairs[i];
    }
  }

  // B operands of k steps 2 i_load and 2 i_load + 1 for the eight positions of n tile i_column.
  static __device__ __forceinline__ void load_keys(uint32_t (&b)[kStepsPerLoad][2],
                                                   uint32_t keys,
                                                   int i_column,
                                                   int i_load) {
    const int i_lane = threadIdx.x % kWarp;
    const uint32_t o_lane = i_lane % 8 * kRowBytes + swizzle_key(i_lane, i_lane / 8) * kChunkBytes;
    const uint32_t flip = i_load % 2 * 4 * kChunkBytes;
    uint32_t loaded[4];
    load_matrices(
        loaded, ((keys + o_lane) ^ flip) + 8 * i_column * kRowBytes + i_load / 2 * 8 * kChunkBytes);
    b[0][0] = loaded[0];
    b[0][1] = loaded[1];
    b[1][0] = loaded[2];
    b[1][1] = loaded[3];
  }

  // B operands of the 16 positions of k step i_step for all n tiles of the warp.
  static __device__ __forceinline__ void load_values(uint32_t (&b)[kWarpColumns][2],
                                                     uint32_t values,
                                                     int i_warp,
                                                     int i_step) {
    const int i_lane = threadIdx.x % kWarp;
    const uint32_t o_lane =
        i_lane % 16 * kRowBytes +
        swizzle_value(i_lane, kWarpColumns * i_warp + i_lane / 16) * kChunkBytes;
#pragma unroll
    for (int i = 0; i < kWarpColumns / 2; ++i) {
      const uint32_t flip = 2 * i * kChunkBytes;
      uint32_t loaded[4];
      load_matrices_transposed(loaded, ((values + o_lane) ^ flip) + 16 * i_step * kRowBytes);
      b[2 * i][0] = loaded[0];
      b[2 * i][1] = loaded[1];
      b[2 * i + 1][0] = loaded[2];
      b[2 * i + 1][1] = loaded[3];
    }
  }

  // Stores one row's share of a thread: i_half picks the row of the accumulators.
  static __device__ __forceinline__ void store_row(float* p_row,
                                                   const float (&b_out)[kWarpColumns][4],
                                                   int i_warp,
                                                   int i_half) {
    const int i_pair = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < kWarpColumns; ++i) {
      *reinterpret_cast<float2*>(p_row + kWarpDims * i_warp + 8 * i + 2 * i_pair) =
          make_float2(b_out[i][2 * i_half], b_out[i][2 * i_half + 1]);
    }
  }
};

// float8 e4m3 with one scale per position. From sm_89 on an instruction makes two float16 of two
// bytes. Before, a byte s eeee mmm moved to bits s 0eeee mmm0000000 is the float16 of 2^-8 times
// its value, exactly, subnormals included. The bytes 0x7f and 0xff (NaN) are not used: a position
// that is not finite has a NaN scale instead.
//
// The weights are multiplied with the scale of the value and with 2^8, which keeps small products
// clear of the subnormals of float16.
struct Float8Cache {
  using Compute = __half;
  static constexpr bool kScaled = true;
  static constexpr int kRowBytes = kHeadDim;
  static constexpr int kTile = kTileBytes / kRowBytes;  // 64 positions
  static constexpr float kWeightUnit = 256.0f;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  static constexpr bool kConverts = true;
  static constexpr float kKeyUnit = 1.0f;             // what one unit of a float16 key stands for
  static constexpr float kOutUnit = 1 / kWeightUnit;  // and one of the output
#else
  static constexpr bool kConverts = false;
  static constexpr float kKeyUnit = 256.0f;
  static constexpr float kOutUnit = 1.0f;
#endif

  static __device__ __forceinline__ int swizzle_key(int row, int chunk) {
    return chunk ^ ((row & 3) << 1);
  }
  static __device__ __forceinline__ int swizzle_value(int row, int chunk) {
    return chunk ^ (row & 6);
  }

  // Bytes 0 and 1, and bytes 2 and 3, as two float16 each; or, without the instruction, bytes 0 and
  // 2, and bytes 1 and 3.
  static __device__ __forceinline__ void to_halves(uint32_t (&halves)[2], uint32_t bytes) {
    if constexpr (kConverts) {
      widen_e4m3(halves, bytes);
    } else {
      halves[0] = ((bytes << 8) & 0x80008000u) | ((bytes << 7) & 0x3f803f80u);
      halves[1] = (bytes & 0x80008000u) | ((bytes >> 1) & 0x3f803f80u);
    }
  }

  static __device__ __forceinline__ void store_query(uint32_t* p_tile,
                                                     int i_row,
                                                     int i_chunk,
                                                     const uint4& packed) {
    const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < kStepsPerLoad; ++i) {
      const uint32_t low = pairs[2 * i], high = pairs[2 * i + 1];
      const int i_to = operand_at(kStepsPerLoad * (i_chunk / 4) + i, i_row % 8 * 4 + i_chunk % 4);
      p_tile[4 * i_to + i_row / 8] = kConverts ? low : __byte_perm(low, high, 0x5410);
      p_tile[4 * i_to + i_row / 8 + 2] = kConverts ? high : __byte_perm(low, high, 0x7632);
    }
  }

  static __device__ __forceinline__ void load_keys(uint32_t (&b)[kStepsPerLoad][2],
                                                   uint32_t keys,
                                                   int i_column,
                                                   int i_load) {
    const int i_lane = threadIdx.x % kWarp;
    const uint32_t o_lane = i_lane / 4 * kRowBytes +
                            swizzle_key(i_lane / 4, i_lane % 4 / 2) * kChunkBytes +
                            8 * (i_lane % 2);
    const uint32_t flip = i_load % 4 * 2 * kChunkBytes;
    uint32_t bytes[kStepsPerLoad];
    load_pair(bytes,
              ((keys + o_lane) ^ flip) + 8 * i_column * kRowBytes + i_load / 4 * 8 * kChunkBytes);
#pragma unroll
    for (int i = 0; i < kStepsPerLoad; ++i) {
      to_halves(b[i], bytes[i]);
    }
  }

  // Column c of n tile i stands for dim 8 c + i of the warp's 64.
  static __device__ __forceinline__ void load_values(uint32_t (&b)[kWarpColumns][2],
                                                     uint32_t values,
                                                     int i_warp,
                                                     int i_step) {
    const int i_quad = threadIdx.x % kWarp / 4;
    const int i_pair = threadIdx.x % 4;
#pragma unroll
    for (int i_half = 0; i_half < 2; ++i_half) {
      uint32_t bytes[2][2];  // of two adjacent positions
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 2 * i_pair + i;
        const int chunk = swizzle_value(row, 4 * i_warp + i_quad / 2);
        load_pair(bytes[i], values + row * kRowBytes + chunk * kChunkBytes + 8 * (i_quad % 2) +
                                (16 * i_step + 8 * i_half) * kRowBytes);
      }
      // Bytes i and i + 1 of either position, so that one float16 of each lands in a pair.
      constexpr unsigned kSelectors[2] = {kConverts ? 0x5140u : 0x5410u,
                                          kConverts ? 0x7362u : 0x7632u};
#pragma unroll
      for (int i = 0; i < kWarpColumns; i += 2) {
        uint32_t halves[2];
        to_halves(halves, __byte_perm(bytes[0][i / 4], bytes[1][i / 4], kSelectors[i / 2 % 2]));
        b[i][i_half] = halves[0];
        b[i + 1][i_half] = halves[1];
      }
    }
  }

  static __device__ __forceinline__ void store_row(float* p_row,
                                                   const float (&b_out)[kWarpColumns][4],
                                                   int i_warp,
                                                   int i_half) {
    const int i_pair = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = 2 * i_half + j;
      auto* p_dims = reinterpret_cast<float4*>(p_row + kWarpDims * i_warp + 8 * (2 * i_pair + j));
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        p_dims[k] = make_float4(b_out[4 * k][i] * kOutUnit, b_out[4 * k + 1][i] * kOutUnit,
                                b_out[4 * k + 2][i] * kOutUnit, b_out[4 * k + 3][i] * kOutUnit);
      }
    }
  }
};

// While a query has seen nothing, its maximum is infinite, and infinity less infinity no number.
__device__ __forceinline__ float finite_or_zero(float max) {
  return max == kMinusInfinity ? 0.0f : max;
}

// One stage of shared memory: keys, values and, where the cache has them, the scales.
template <typename Cache>
struct TileStage {
  static constexpr int kScaleBytes = Cache::kScaled ? Cache::kTile * 4 : 0;
  static constexpr int kBytes = 2 * kTileBytes + 2 * kScaleBytes;
  static constexpr int kValues = kTileBytes;  // offsets in bytes
  static constexpr int kKeyScales = 2 * kTileBytes;
  static constexpr int kValueScales = kKeyScales + kScaleBytes;
};

// Where one kv head of the cache lies.
struct HeadCache {
  const unsigned char* p_keys;
  const unsigned char* p_values;
  const float* p_key_scales;    // null without scales
  const float* p_value_scales;  // null without scales
};

// Begins to copy the positions first .. first + kTile - 1; those beyond `last` become zeros, so
// what lies there in memory, NaN perhaps, has no effect.
template <typename Cache>
__device__ __forceinline__ void begin_load_tile(uint32_t stage,
                                                const HeadCache& head,
                                                int first,
                                                int last) {
  constexpr int kRowChunks = Cache::kRowBytes / kChunkBytes;
  constexpr int kPassRows = kTileThreads / kRowChunks;
  constexpr int kPasses = Cache::kTile / kPassRows;
  static_assert(2 * kPassRows % 8 == 0, "the swizzles repeat after eight rows");
  const int row = threadIdx.x / kRowChunks;
  const int chunk = threadIdx.x % kRowChunks;
  const int64_t o_from = static_cast<int64_t>(first) * Cache::kRowBytes + threadIdx.x * kChunkBytes;
  const unsigned char* p_keys = head.p_keys + o_from;
  const unsigned char* p_values = head.p_values + o_from;
  uint32_t to_keys[2], to_values[2];  // of even and odd passes
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int to_row = row + i * kPassRows;
    to_keys[i] = stage + row * Cache::kRowBytes + Cache::swizzle_key(to_row, chunk) * kChunkBytes;
    to_values[i] = stage + TileStage<Cache>::kValues + row * Cache::kRowBytes +
                   Cache::swizzle_value(to_row, chunk) * kChunkBytes;
  }
  constexpr int kPassBytes = kPassRows * Cache::kRowBytes;
  if (first + Cache::kTile <= last + 1) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      async_copy_16(to_keys[i % 2] + i * kPassBytes, p_keys + i * kPassBytes);
      async_copy_16(to_values[i % 2] + i * kPassBytes, p_values + i * kPassBytes);
    }
  } else {
#pragma unroll 2
    for (int i = 0; i < kPasses; ++i) {
      const bool valid = first + row + i * kPassRows <= last;
      const int num_bytes = valid ? kChunkBytes : 0;
      const int o_pass = valid ? i * kPassBytes : 0;
      async_copy_16(to_keys[i % 2] + i * kPassBytes, valid ? p_keys + o_pass : head.p_keys,
                    num_bytes);
      async_copy_16(to_values[i % 2] + i * kPassBytes, valid ? p_values + o_pass : head.p_values,
                    num_bytes);
    }
  }
  if constexpr (Cache::kScaled) {
    constexpr int kScaleChunks = TileStage<Cache>::kScaleBytes / kChunkBytes;
    if (threadIdx.x < 2 * kScaleChunks) {
      const int i_position = threadIdx.x % kScaleChunks * 4;
      const float* p_scales = threadIdx.x < kScaleChunks ? head.p_key_scales : head.p_value_scales;
      const int num_valid = min(max(last + 1 - first - i_position, 0), 4);
      async_copy_16(stage + TileStage<Cache>::kKeyScales + threadIdx.x * kChunkBytes,
                    p_scales + first + (num_valid > 0 ? i_position : 0), 4 * num_valid);
    }
  }
}

// What a block carries through a leaf. Row h of tile m is query 16 m + lane / 4 + 8 h. The maximum
// is that of the scores in units of log 2; every warp holds it.
template <int kQueries>
struct AttentionState {
  static constexpr int kTiles = query_tiles(kQueries);
  static constexpr int kHalves = query_halves(kQueries);
  float out[kTiles][kWarpColumns][4];
  float max[kTiles][kHalves];
  float sum[kTiles]
           [kHalves];  // of this lane's columns: the four lanes of a row are added at the end
};

// The last position that each query of the lane sees.
template <int kQueries>
using SeenPositions = int[query_tiles(kQueries)][query_halves(kQueries)];

template <int kQueries>
__device__ __forceinline__ void reset(AttentionState<kQueries>& state) {
#pragma unroll
  for (int m = 0; m < state.kTiles; ++m) {
#pragma unroll
    for (int i = 0; i < kWarpColumns; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        state.out[m][i][j] = 0.0f;
      }
    }
#pragma unroll
    for (int h = 0; h < state.kHalves; ++h) {
      state.max[m][h] = kMinusInfinity;
      state.sum[m][h] = 0.0f;
    }
  }
}

// The scores of n tile i_column: [queries][8] floats over the keys that they came from.
template <typename Cache>
__device__ __forceinline__ float2* scores_at(unsigned char* p_stage, int i_column, int i_query) {
  const int i_pair = threadIdx.x % 4;
  return reinterpret_cast<float2*>(p_stage + i_column * 8 * Cache::kRowBytes) + 4 * i_query +
         i_pair;
}

// Replaces the warp's keys by scores * unit (and * the key's scale). p_queries holds the A operands
// of all k steps: [query_tiles(kQueries)][kQuerySteps][lane] of 16 bytes.
template <typename Cache, int kQueries>
__device__ __forceinline__ void tile_scores(unsigned char* p_stage,
                                            const uint4* p_queries,
                                            float unit) {
  constexpr int kTiles = query_tiles(kQueries);
  constexpr int kColumns = Cache::kTile / 8 / kTileWarps;  // n tiles of this warp
  const int i_lane = threadIdx.x % kWarp;
  const int i_first = threadIdx.x / kWarp * kColumns;
  const uint32_t keys = shared_address(p_stage);

  // Two chains of sums, even and odd k steps: one chain alone would wait for each product.
  float b_scores[kTiles][kColumns][2][4] = {};
  // Keys are loaded some steps ahead of their products; with more queries there is more to do in
  // one step, and there are fewer registers.
  constexpr int kAhead = kTiles == 1 ? 8 : kTiles == 2 ? 4 : 2;
#pragma unroll 1
  for (int i_first_load = 0; i_first_load < kQuerySteps / kStepsPerLoad; i_first_load += kAhead) {
    uint32_t b_keys[kAhead][kColumns][kStepsPerLoad][2];
#pragma unroll
    for (int i_load = 0; i_load < kAhead; ++i_load) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        Cache::load_keys(b_keys[i_load][j], keys, i_first + j, i_first_load + i_load);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead * kStepsPerLoad; ++i) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const int i_step = i_first_load * kStepsPerLoad + i;
        const uint4 loaded = p_queries[m * kQuerySteps * kWarp + operand_at(i_step, i_lane)];
        const uint32_t a[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          mma_m16n8k16(b_scores[m][j][i % 2], a, b_keys[i / kStepsPerLoad][j][i % kStepsPerLoad],
                       typename Cache::Compute{});
        }
      }
    }
  }

  __syncwarp();  // the scores take the place of keys that other lanes of the warp read
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    float2 scale = make_float2(unit, unit);
    if constexpr (Cache::kScaled) {
      const auto* p_scales =
          reinterpret_cast<const float2*>(p_stage + TileStage<Cache>::kKeyScales);
      const float2 loaded = p_scales[4 * (i_first + j) + i_lane % 4];
      scale = make_float2(__fmul_rn(unit, loaded.x * Cache::kKeyUnit),
                          __fmul_rn(unit, loaded.y * Cache::kKeyUnit));
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const float (&b_even)[4] = b_scores[m][j][0];
      const float (&b_odd)[4] = b_scores[m][j][1];
#pragma unroll
      for (int h = 0; h < query_halves(kQueries); ++h) {
        *scores_at<Cache>(p_stage, i_first + j, 16 * m + i_lane / 4 + 8 * h) =
            make_float2(__fmul_rn(__fadd_rn(b_even[2 * h], b_odd[2 * h]), scale.x),
                        __fmul_rn(__fadd_rn(b_even[2 * h + 1], b_odd[2 * h + 1]), scale.y));
      }
    }
  }
}

// A score as its query sees it: what lies beyond the limit counts as minus infinity.
template <bool kAllSeen>
__device__ __forceinline__ float2 seen(float2 scores, int column, int limit) {
  if constexpr (kAllSeen) {
    return scores;
  }
  return make_float2(column <= limit ? scores.x : kMinusInfinity,
                     column + 1 <= limit ? scores.y : kMinusInfinity);
}

// Takes the largest scores of the tile at `first` into the state and brings its sums to the new
// maxima.
template <typename Cache, bool kAllSeen, int kQueries>
__device__ __forceinline__ void raise_maxima(AttentionState<kQueries>& state,
                                             unsigned char* p_stage,
                                             int first,
                                             const SeenPositions<kQueries>& sees) {
  const int i_quad = threadIdx.x % kWarp / 4;
  const int i_pair = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < state.kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < state.kHalves; ++h) {
      const int limit = sees[m][h] - first;  // the last column that the query sees
      float new_max = state.max[m][h];
#pragma unroll
      for (int i = 0; i < Cache::kTile / 8; ++i) {
        const float2 loaded = *scores_at<Cache>(p_stage, i, 16 * m + i_quad + 8 * h);
        const float2 b = seen<kAllSeen>(loaded, 8 * i + 2 * i_pair, limit);
        new_max = fmaxf(new_max, fmaxf(b.x, b.y));
      }
      new_max = fmaxf(new_max, __shfl_xor_sync(kAllLanes, new_max, 1));
      new_max = fmaxf(new_max, __shfl_xor_sync(kAllLanes, new_max, 2));
      const float shrink = exp2_fast(__fsub_rn(state.max[m][h], finite_or_zero(new_max)));
      state.max[m][h] = new_max;
      state.sum[m][h] = __fmul_rn(state.sum[m][h], shrink);
#pragma unroll
      for (int i = 0; i < kWarpColumns; ++i) {
        state.out[m][i][2 * h] = __fmul_rn(state.out[m][i][2 * h], shrink);
        state.out[m][i][2 * h + 1] = __fmul_rn(state.out[m][i][2 * h + 1], shrink);
      }
    }
  }
}

// Adds the tile at position `first` to the state. sees[m][h]: the last position that the query
// sees; it may lie in front of the tile or behind it. kAllSeen: every query sees the whole tile. A
// position that a query does not see changes no bit of it.
template <typename Cache, bool kAllSeen, int kQueries>
__device__ __forceinline__ void add_tile(AttentionState<kQueries>& state,
                                         unsigned char* p_stage,
                                         int first,
                                         const SeenPositions<kQueries>& sees) {
  constexpr int kSteps = Cache::kTile / 16;
  using Compute = typename Cache::Compute;
  const int i_quad = threadIdx.x % kWarp / 4;
  const int i_pair = threadIdx.x % 4;
  const uint32_t values = shared_address(p_stage) + TileStage<Cache>::kValues;

  raise_maxima<Cache, kAllSeen>(state, p_stage, first, sees);
  constexpr int kUnroll = kQueries <= 32 ? 2 : 1;
#pragma unroll kUnroll
  for (int i_step = 0; i_step < kSteps; ++i_step) {
    uint32_t b_weights[query_tiles(kQueries)][4] = {};  // P, as A operands
#pragma unroll
    for (int m = 0; m < state.kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < state.kHalves; ++h) {
        const int limit = sees[m][h] - first;
        const float offset = finite_or_zero(state.max[m][h]);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 2 * i_step + e;
          const int column = 8 * i + 2 * i_pair;
          const float2 loaded = *scores_at<Cache>(p_stage, i, 16 * m + i_quad + 8 * h);
          const float2 b = seen<kAllSeen>(loaded, column, limit);
          float low = exp2_fast(__fsub_rn(b.x, offset));
          float high = exp2_fast(__fsub_rn(b.y, offset));
          state.sum[m][h] = __fadd_rn(state.sum[m][h], __fadd_rn(low, high));
          if constexpr (Cache::kScaled) {
            const auto* p_scales =
                reinterpret_cast<const float2*>(p_stage + TileStage<Cache>::kValueScales);
            const float2 scale = p_scales[4 * i + i_pair];
            // Not by multiplying alone: the scale of a column that is not seen may be NaN.
            low = kAllSeen || column <= limit ? __fmul_rn(low, scale.x * Cache::kWeightUnit) : 0.0f;
            high = kAllSeen || column + 1 <= limit ? __fmul_rn(high, scale.y * Cache::kWeightUnit)
                                                   : 0.0f;
          }
          b_weights[m][2 * e + h] = pack_pair(low, high, Compute{});
        }
      }
    }
    uint32_t b_values[kWarpColumns][2];
    Cache::load_values(b_values, values, threadIdx.x / kWarp, i_step);
#pragma unroll
    for (int i = 0; i < kWarpColumns; ++i) {
#pragma unroll
      for (int m = 0; m < state.kTiles; ++m) {
        mma_m16n8k16(state.out[m][i], b_weights[m], b_values[i], Compute{});
      }
    }
  }
}

}  // namespace bytebound
