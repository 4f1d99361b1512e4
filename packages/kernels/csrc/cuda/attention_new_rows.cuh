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

// A lane's share of a norm's factors, 1 + w.
__device__ __forceinline__ void load_norm(const AttentionArgs& args,
                                          const void* p_norm,
                                          float (&b)[kChunk]) {
  if (args.float_norms) {
    load_chunk<false>(static_cast<const float*>(p_norm), threadIdx.x % kWarp * kChunk, kHeadDim, b);
  } else {
    uint32_t pairs[4];
    load_pairs(p_norm, 0, false, pairs);
    to_numbers(b, pairs, args.half_rows);
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b[j] = __fadd_rn(1.0f, b[j]);
  }
}

// What the rows of a call are made in, before the tiles take the place: sines and cosines of each
// row's position, then a slot for each new key, new value and query of the block. With a slot for
// everything the rows come by asynchronous copies, all at once and ahead of the tiles.
struct Scratch {
  float2* p_turns;                                 // [rows, half_rotary]
  unsigned char* p_rows;                           // [new rows and queries, kSlotBytes]
  static constexpr int kSlotBytes = kHeadDim * 2;  // of a row of 16 bits
  static constexpr int kScale = kHeadDim;          // where a slot holds a float8 row's scale

  __device__ __forceinline__ Scratch(unsigned char* p_memory, const AttentionArgs& args)
      : p_turns(reinterpret_cast<float2*>(p_memory)),
        p_rows(p_memory + args.rows * args.half_rotary * static_cast<int>(sizeof(float2))) {}

  __device__ __forceinline__ unsigned char* row(int i) const { return p_rows + i * kSlotBytes; }
};

__device__ __forceinline__ void make_turns(const AttentionArgs& args,
                                           const Scratch& scratch,
                                           int position) {
  for (int i = tile_thread(); i < args.rows * args.half_rotary; i += kTileThreads) {
    scratch.p_turns[i] =
        turn_of(args.p_inv_freq[i % args.half_rotary], position + i / args.half_rotary);
  }
}

// The block's rows: if it appends, the new keys and values of the kv head, then the part's queries.
// Where each comes from is worked out by a lane, before the wait: a warp then asks for it.
struct RowTasks {
  static constexpr int kPerLane = 2;  // a lane knows rows i_lane and i_lane + 32

  int num_new;  // keys, then values
  int num;
  const uint16_t* p_from[kPerLane];
  int i_row[kPerLane];  // of the call

  __device__ __forceinline__ void set(
      const AttentionArgs& args, bool appends, int i_kv, int i_first, int num_queries) {
    const int group = args.num_heads / args.num_kv_heads;
    num_new = appends ? 2 * args.rows : 0;
    num = num_new + num_queries;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int i = static_cast<int>(threadIdx.x) % kWarp + j * kWarp;
      const void* p = args.p_q_gate;
      int64_t o_row;
      if (i < num_new) {
        const bool is_value = i >= args.rows;
        i_row[j] = is_value ? i - args.rows : i;
        o_row = i_row[j] * (is_value ? args.v_row_stride : args.k_row_stride) + i_kv * kHeadDim;
        p = is_value ? args.p_v : args.p_k;
      } else {
        const int q = i_first + min(i, num - 1) - num_new;
        i_row[j] = q / group;
        o_row = i_row[j] * args.q_gate_row_stride + (i_kv * group + q % group) * 2 * kHeadDim;
      }
      p_from[j] = static_cast<const uint16_t*>(p) + o_row;
    }
  }

  // Of row i, the same for the whole warp.
  __device__ __forceinline__ const uint16_t* source(int i) const {
    const auto p = reinterpret_cast<unsigned long long>(i < kWarp ? p_from[0] : p_from[1]);
    return reinterpret_cast<const uint16_t*>(__shfl_sync(kAllLanes, p, i % kWarp));
  }
  __device__ __forceinline__ int row(int i) const {
    return __shfl_sync(kAllLanes, i < kWarp ? i_row[0] : i_row[1], i % kWarp);
  }
};
static_assert(kMaxQueries + 2 * kMaxRows <= RowTasks::kPerLane * kWarp);

// Begins to copy the rows that this warp makes.
__device__ __forceinline__ void begin_load_rows(const RowTasks& tasks, const Scratch& scratch) {
  const int i_lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int i = tile_warp(); i < tasks.num; i += kTileWarps) {
    async_copy_16(shared_address(scratch.row(i)) + i_lane * kChunkBytes,
                  tasks.source(i) + i_lane * kChunk);
  }
}

// The part's queries, as A operands in shared memory; before them the new rows, into the cache and
// into their slots of the scratch. A warp makes every fourth row, two at a time: each is a chain of
// dependent steps. The place of queries that there are not is zero already.
template <typename Cache, int kQueries>
__device__ __forceinline__ void make_rows(const AttentionArgs& args,
                                          const RowTasks& tasks,
                                          const Scratch& scratch,
                                          const float (&b_q_norm)[kChunk],
                                          const float (&b_k_norm)[kChunk],
                                          uint4* s_queries,
                                          int i_kv,
                                          int position,
                                          bool are_loaded) {
  using Compute = typename Cache::Compute;
  constexpr int kItemBytes = Cache::kRowBytes / kHeadDim;
  constexpr int kTogether = 2;
#pragma unroll 1
  for (int i_first = tile_warp(); i_first < tasks.num; i_first += kTogether * kTileWarps) {
    uint32_t pairs[kTogether][4];
    int i_row[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int i_next = i_first + u * kTileWarps;
      const int i =
          i_next < tasks.num ? i_next : i_first;  // where there is none, once more, unused
      i_row[u] = tasks.row(i);
      if (are_loaded) {
        const uint4 loaded = reinterpret_cast<const uint4*>(scratch.row(i))[threadIdx.x % kWarp];
        pairs[u][0] = loaded.x;
        pairs[u][1] = loaded.y;
        pairs[u][2] = loaded.z;
        pairs[u][3] = loaded.w;
      } else {
        load_pairs(tasks.source(i), 0, args.vector, pairs[u]);
      }
    }
    __syncwarp();  // a new row takes the place of what it is made of
    float b[kTogether][kChunk];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int i = i_first + u * kTileWarps;
      const bool is_query = i >= tasks.num_new;
      const bool is_value = !is_query && i >= args.rows;
      to_numbers(b[u], pairs[u], args.half_rows);
      float b_made[kChunk], b_weight[kChunk];
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        b_made[j] = b[u][j];
        b_weight[j] = is_query ? b_q_norm[j] : b_k_norm[j];
      }
      norm_row(b_made, b_weight, args.eps);
      turn_row(b_made, scratch.p_turns + i_row[u] * args.half_rotary, args.half_rotary);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        b[u][j] = is_value ? b[u][j] : b_made[j];
      }
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int i = i_first + u * kTileWarps;
      const int i_query = i - tasks.num_new;
      if (i_query >= 0 && i < tasks.num) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          pairs[u][j] = pack_pair(b[u][2 * j], b[u][2 * j + 1], Compute{});
        }
        uint4* p_tile = s_queries + i_query / 16 * kQuerySteps * kWarp;
        Cache::store_query(reinterpret_cast<uint32_t*>(p_tile), i_query % 16, pairs[u]);
      } else if (i_query < 0) {
        const bool is_value = i >= args.rows;
        const int64_t o_head = i_kv * args.cache_head_stride * kItemBytes;
        const int64_t o_row = static_cast<int64_t>(position + i_row[u]) * Cache::kRowBytes;
        const int64_t o_scale = i_kv * args.scale_head_stride + position + i_row[u];
        append_row(Cache{}, b[u],
                   {(is_value ? args.p_v_cache : args.p_k_cache) + o_head + o_row,
                    (is_value ? args.p_v_scale : args.p_k_scale) + o_scale, scratch.row(i),
                    reinterpret_cast<float*>(scratch.row(i) + Scratch::kScale)});
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
  const int i_chunk = tile_thread() % kRowChunks;
  const int i_begin = max(first, position);
  const int num = min(first + Cache::kTile, last + 1) - i_begin;
#pragma unroll 1
  for (int i = tile_thread() / kRowChunks; i < 2 * num; i += kTileThreads / kRowChunks) {
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
