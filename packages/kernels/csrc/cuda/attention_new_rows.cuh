// The rows that a block of attention_decode makes before its first tile: its queries as operands,
// and, where it holds the newest positions, the new keys and values.
#pragma once

#include <cstdint>

#include "async_copy.cuh"
#include "attention_args.cuh"
#include "attention_rows.cuh"
#include "attention_tile.cuh"
#include "attention_unseen.cuh"
#include "chunk.cuh"

namespace bytebound {

// What the rows of a call are made in, before the tiles take the place: sines and cosines of each
// row's position, the factors of the two norms, then a slot for each new key, new value and query
// of the block. With a slot for everything the rows come by asynchronous copies, all at once and
// ahead of the tiles.
struct Scratch {
  float2* p_turns;                                 // [rows, half_rotary]
  float* p_factors;                                // [queries, keys][kHeadDim], 1 + w
  unsigned char* p_rows;                           // [new rows and queries, kSlotBytes]
  static constexpr int kSlotBytes = kHeadDim * 2;  // of a row of 16 bits
  static constexpr int kScale = kHeadDim;          // where a slot holds a float8 row's scale

  __device__ __forceinline__ Scratch(unsigned char* p_memory, const AttentionArgs& args)
      : p_turns(reinterpret_cast<float2*>(p_memory)),
        p_factors(reinterpret_cast<float*>(p_turns + args.rows * args.half_rotary)),
        p_rows(reinterpret_cast<unsigned char*>(p_factors + 2 * kHeadDim)) {}

  __device__ __forceinline__ unsigned char* row(int i) const { return p_rows + i * kSlotBytes; }

  static __device__ __forceinline__ int num_bytes(const AttentionArgs& args, int slots) {
    return args.rows * args.half_rotary * static_cast<int>(sizeof(float2)) +
           2 * kHeadDim * static_cast<int>(sizeof(float)) + slots * kSlotBytes;
  }
};

__device__ __forceinline__ void make_factors(const AttentionArgs& args, const Scratch& scratch) {
#pragma unroll
  for (int i = 0; i < 2 * kHeadDim; i += kTileThreads) {
    const void* p_norm = i < kHeadDim ? args.p_q_norm : args.p_k_norm;
    const int i_dim = i % kHeadDim + static_cast<int>(threadIdx.x);
    float weight;
    if (args.float_norms) {
      weight = static_cast<const float*>(p_norm)[i_dim];
    } else {
      const uint16_t bits = static_cast<const uint16_t*>(p_norm)[i_dim];
      weight = args.half_rows ? __half2float(__ushort_as_half(bits))
                              : __uint_as_float(static_cast<uint32_t>(bits) << 16);
    }
    scratch.p_factors[i + threadIdx.x] = __fadd_rn(1.0f, weight);
  }
}

__device__ __forceinline__ void make_turns(const AttentionArgs& args,
                                           const Scratch& scratch,
                                           int position) {
  for (int i = threadIdx.x; i < args.rows * args.half_rotary; i += kTileThreads) {
    scratch.p_turns[i] =
        turn_of(args.p_inv_freq[i % args.half_rotary], position + i / args.half_rotary);
  }
}

// The block's rows: if it appends, the new keys and values of the kv head, then the part's queries.
// A round makes kRoundRows of them. Where each comes from is worked out before the wait.
template <int kQueries>
struct RowTasks {
  static constexpr int kRoundRows = kTileWarps * kWarpRows;
  static constexpr int kRounds = (kQueries + 2 * kMaxRows + kRoundRows - 1) / kRoundRows;
  static constexpr int kBits = 8;  // of a row's number
  static_assert(kRounds * kBits <= 32, "a word has them all");

  int num_new;  // keys, then values
  int num;
  const uint16_t* p_from[kRounds];
  uint32_t i_rows;  // of the call, a byte for each round

  // The row that the lane has a part of, which there may not be.
  static __device__ __forceinline__ int index(int i_round) {
    return i_round * kRoundRows + static_cast<int>(threadIdx.x) / kRowLanes;
  }

  __device__ __forceinline__ int row(int i_round) const {
    return i_rows >> (i_round * kBits) & ((1 << kBits) - 1);
  }

  __device__ __forceinline__ void set(
      const AttentionArgs& args, bool appends, int i_kv, int i_first, int num_queries) {
    num_new = appends ? 2 * args.rows : 0;
    num = num_new + num_queries;
    i_rows = 0;
#pragma unroll
    for (int i_round = 0; i_round < kRounds; ++i_round) {
      int i_row;
      p_from[i_round] = source(args, index(i_round), i_kv, i_first, i_row);
      i_rows |= i_row << (i_round * kBits);
    }
  }

  // Of row i, or of the last one.
  __device__ __forceinline__ const uint16_t* source(
      const AttentionArgs& args, int i, int i_kv, int i_first, int& i_row) const {
    const void* p = args.p_q_gate;
    int64_t o_row;
    if (i < num_new) {
      const bool is_value = i >= args.rows;
      i_row = is_value ? i - args.rows : i;
      o_row = i_row * (is_value ? args.v_row_stride : args.k_row_stride) + i_kv * kHeadDim;
      p = is_value ? args.p_v : args.p_k;
    } else {
      const int group = args.num_heads / args.num_kv_heads;
      const int q = i_first + min(i, num - 1) - num_new;
      i_row = q / group;
      o_row = i_row * args.q_gate_row_stride + (i_kv * group + q % group) * 2 * kHeadDim;
    }
    return static_cast<const uint16_t*>(p) + o_row;
  }
};

// Begins to copy what this lane makes.
template <int kQueries>
__device__ __forceinline__ void begin_load_rows(const RowTasks<kQueries>& tasks,
                                                const Scratch& scratch,
                                                int half_rotary) {
#pragma unroll
  for (int i_round = 0; i_round < tasks.kRounds; ++i_round) {
    const int i = tasks.index(i_round);
    if (i < tasks.num) {
#pragma unroll
      for (int c = 0; c < kRowChunks; ++c) {
        const int i_chunk = row_chunk(c, half_rotary);
        async_copy_16(shared_address(scratch.row(i)) + i_chunk * kChunkBytes,
                      tasks.p_from[i_round] + i_chunk * kChunk);
      }
    }
  }
}

// Eight dims as they lie in memory, of a row that no copy could fetch.
__device__ __forceinline__ uint4 load_row_chunk(const uint16_t* p, bool vector) {
  if (vector) {
    return *reinterpret_cast<const uint4*>(p);
  }
  return make_uint4(
      p[0] | static_cast<uint32_t>(p[1]) << 16, p[2] | static_cast<uint32_t>(p[3]) << 16,
      p[4] | static_cast<uint32_t>(p[5]) << 16, p[6] | static_cast<uint32_t>(p[7]) << 16);
}

// The part's queries, as A operands in shared memory; before them the new rows, into the cache and
// into their slots of the scratch. The place of queries that there are not is zero already.
template <typename Cache, int kQueries>
__device__ __forceinline__ void make_rows(const AttentionArgs& args,
                                          const RowTasks<kQueries>& tasks,
                                          const Scratch& scratch,
                                          uint4* s_queries,
                                          int i_kv,
                                          int i_first,
                                          int position,
                                          bool are_loaded) {
  constexpr int kItemBytes = Cache::kRowBytes / kHeadDim;
  const int half_rotary = args.half_rotary;
#pragma unroll 1
  for (int i_round = 0; i_round * tasks.kRoundRows < tasks.num; ++i_round) {
    const int i = tasks.index(i_round);
    const bool is_query = i >= tasks.num_new;
    const bool is_value = !is_query && i >= args.rows;
    const int i_row = tasks.row(i_round);
    const bool is_there = i < tasks.num;
    const unsigned char* p_slot = scratch.row(i);
    const uint16_t* p_row = nullptr;
    if (!are_loaded) {
      int unused;
      p_row = tasks.source(args, i, i_kv, i_first, unused);
    }
    uint4 loaded[kRowChunks];
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) {
      const int i_chunk = row_chunk(c, half_rotary);
      loaded[c] = make_uint4(0, 0, 0, 0);
      if (is_there) {
        loaded[c] = are_loaded ? reinterpret_cast<const uint4*>(p_slot)[i_chunk]
                               : load_row_chunk(p_row + i_chunk * kChunk, args.vector);
      }
    }
    RowDims b;
    if (args.half_rows) {
      to_numbers<true>(b, loaded);
    } else {
      to_numbers<false>(b, loaded);
    }
    const float inverse = inverse_rms(b, args.eps);
    if (!is_value) {
      norm_row(b, inverse, scratch.p_factors + (is_query ? 0 : kHeadDim), half_rotary);
      turn_row(b, scratch.p_turns + i_row * half_rotary, half_rotary);
    }
    float scale = 1.0f;
    if (Cache::kScaled && tasks.num_new > 0) {
      scale = row_scale(Cache{}, b);
    }
    __syncwarp();  // a new row takes the place of what it is made of
    if (!is_query) {
      const int64_t o_head = i_kv * args.cache_head_stride * kItemBytes;
      const int64_t o_row = static_cast<int64_t>(position + i_row) * Cache::kRowBytes;
      const int64_t o_scale = i_kv * args.scale_head_stride + position + i_row;
      append_row(Cache{}, b, scale, half_rotary,
                 {(is_value ? args.p_v_cache : args.p_k_cache) + o_head + o_row,
                  (is_value ? args.p_v_scale : args.p_k_scale) + o_scale, scratch.row(i),
                  reinterpret_cast<float*>(scratch.row(i) + Scratch::kScale)});
    } else if (is_there) {
      const int i_query = i - tasks.num_new;
      uint4* p_tile = s_queries + i_query / 16 * kQuerySteps * kWarp;
#pragma unroll
      for (int c = 0; c < kRowChunks; ++c) {
        Cache::store_query(reinterpret_cast<uint32_t*>(p_tile), i_query % 16,
                           row_chunk(c, half_rotary), pack_chunk<typename Cache::Compute>(b[c]));
      }
    }
  }
}

// Puts the new rows into a tile at `first` that was loaded without them.
template <typename Cache>
__device__ __forceinline__ void place_new_rows(
    unsigned char* p_stage, const Scratch& scratch, int first, int position, int last) {
  constexpr int kRowChunks = Cache::kRowBytes / kChunkBytes;
  const int rows = last + 1 - position;
  const int i_chunk = threadIdx.x % kRowChunks;
  const int i_begin = max(first, position);
  const int num = min(first + Cache::kTile, last + 1) - i_begin;
#pragma unroll 1
  for (int i = threadIdx.x / kRowChunks; i < 2 * num; i += kTileThreads / kRowChunks) {
    const bool is_value = i >= num;
    const int i_position = i_begin + (is_value ? i - num : i);
    const unsigned char* p_from = scratch.row(i_position - position + (is_value ? rows : 0));
    const int row = i_position - first;
    const int chunk =
        is_value ? Cache::swizzle_value(row, i_chunk) : Cache::swizzle_key(row, i_chunk);
    unsigned char* p_to = p_stage + (is_value ? TileStage<Cache>::kValues : 0) +
                          row * Cache::kRowBytes + chunk * kChunkBytes;
    *reinterpret_cast<uint4*>(p_to) = reinterpret_cast<const uint4*>(p_from)[i_chunk];
    if (Cache::kScaled && i_chunk == 0) {
      reinterpret_cast<float*>(p_stage + (is_value ? TileStage<Cache>::kValueScales
                                                   : TileStage<Cache>::kKeyScales))[row] =
          *reinterpret_cast<const float*>(p_from + Scratch::kScale);
    }
  }
}

}  // namespace bytebound
