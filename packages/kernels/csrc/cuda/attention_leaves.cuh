// The leaves of four warps, tile after tile: what is loaded when, and where the results go.
//
// They are a block of attention_decode, or a part of a block of the weight stream: `sync` is the
// barrier of those warps.
#pragma once

#include <cstdint>

#include "async_copy.cuh"
#include "attention_args.cuh"
#include "attention_leaf.cuh"
#include "attention_new_rows.cuh"
#include "attention_tile.cuh"
#include "attention_unseen.cuh"

namespace bytebound {

// The queries that four warps serve, of those of a kv head: [row][head of the group].
struct QueryPart {
  int i_kv;
  int i_first;
  int end;  // of all of the kv head's
};

template <typename Cache>
__device__ __forceinline__ HeadCache head_of(const AttentionArgs& args, int i_kv) {
  constexpr int kItemBytes = Cache::kRowBytes / kHeadDim;
  return {args.p_k_cache + i_kv * args.cache_head_stride * kItemBytes,
          args.p_v_cache + i_kv * args.cache_head_stride * kItemBytes,
          args.p_k_scale + i_kv * args.scale_head_stride,
          args.p_v_scale + i_kv * args.scale_head_stride};
}

// The tiles of a block's leaves.
template <int kTile>
struct TileWalk {
  Leaf leaf;
  int first;  // of the tile; beyond the last position when there is none left
  int end;    // of the leaf
  int i_leaf;

  // The first tile of the leaf number i_leaf of the share.
  __device__ __forceinline__ void enter(const LeafShare& share, int last) {
    const bool is_there = i_leaf < share.num_leaves;
    leaf = leaf_of_index(is_there ? share.leaf(i_leaf) : 0);
    first = is_there ? leaf.start : last + 1;
    end = min(leaf.start + leaf.size, last + 1);
  }

  __device__ __forceinline__ bool is_last_of_leaf() const { return first + kTile >= end; }

  __device__ __forceinline__ void advance(const LeafShare& share, int last) {
    if (is_last_of_leaf()) {
      ++i_leaf;
      enter(share, last);
    } else {
      first += kTile;
    }
  }
};

// sees[m][h] - position is the row of the call that the query belongs to.
template <typename Cache, int kQueries>
__device__ __forceinline__ void store_leaf(const AttentionArgs& args,
                                           const AttentionState<kQueries>& state,
                                           const SeenPositions<kQueries>& sees,
                                           const Leaf& leaf,
                                           int position,
                                           const QueryPart& part) {
  const int group = args.num_heads / args.num_kv_heads;
  const int i_warp = tile_warp();
#pragma unroll
  for (int m = 0; m < state.kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < state.kHalves; ++h) {
      float sum = state.sum[m][h];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const int q = part.i_first + 16 * m + threadIdx.x % kWarp / 4 + 8 * h;
      // A row that sees nothing of the leaf does not read it either.
      if (q < part.end && leaf.start <= sees[m][h]) {
        const int i_row = sees[m][h] - position;
        const int64_t i_vector = i_row * (args.num_heads - group) + part.i_kv * group + q;
        const int64_t i_partial = i_vector * args.max_leaves + leaf.index;
        Cache::store_row(args.p_partial + i_partial * kHeadDim, state.out[m], i_warp, h);
        if (i_warp == 0 && threadIdx.x % 4 == 0) {
          args.p_max_sum[i_partial] = make_float2(state.max[m][h], sum);
        }
      }
    }
  }
}

// Returns when all tiles are there but the last num_stages - 2 that were asked for.
__device__ __forceinline__ void wait_for_tile(int num_stages) {
  if (num_stages == 2) {
    async_copy_wait_but<0>();
  } else if (num_stages == 3) {
    async_copy_wait_but<1>();
  } else {
    async_copy_wait_but<2>();
  }
}

// Puts the new rows into the tiles that were loaded ahead, and lets those that come later read them
// from the cache.
template <typename Cache, typename Sync>
__device__ __forceinline__ void place_rows_ahead(const AttentionArgs& args,
                                                 const Scratch& scratch,
                                                 unsigned char* p_stages,
                                                 const LeafShare& share,
                                                 TileWalk<Cache::kTile> ahead,
                                                 int position,
                                                 int last,
                                                 Sync sync) {
  async_copy_wait();  // what was loaded ahead is complete
  sync();
  for (int i = 0; i < args.num_stages - 1 && ahead.first <= last; ++i) {
    if (ahead.first + Cache::kTile > position) {
      place_new_rows<Cache>(p_stages + i * TileStage<Cache>::kBytes, scratch, ahead.first, position,
                            last);
    }
    ahead.advance(share, last);
  }
  if (ahead.first <= last) {
    __threadfence();  // the other tiles are copied from the cache, past the L1
  }
}

// From the first tile, which is on its way, to the last. `walk` is at the first, `loads` at the
// next one that is to be loaded.
template <typename Cache, int kQueries, int kAhead, typename Sync>
__device__ __forceinline__ void attend(const AttentionArgs& args,
                                       unsigned char* p_stages,
                                       const uint4* p_queries,
                                       ValueMarks& marks,
                                       const LeafShare& share,
                                       TileWalk<Cache::kTile>& walk,
                                       TileWalk<Cache::kTile>& loads,
                                       const SeenPositions<kQueries>& sees,
                                       int position,
                                       const QueryPart& part,
                                       Sync sync) {
  constexpr int kTile = Cache::kTile;
  constexpr int kStageBytes = TileStage<Cache>::kBytes;
  const int last = position + args.rows - 1;
  AttentionState<kQueries> state;
  reset(state);
  int i_stage = 0;
  int i_load_stage = args.num_stages - 1;
  while (walk.first <= last) {
    unsigned char* p_stage = p_stages + i_stage * kStageBytes;
    const int first = walk.first;
    wait_for_tile(args.num_stages);
    sync();  // the tile is here, and nobody reads the stage before it any more
    if (loads.first <= last) {
      begin_load_tile<Cache>(shared_address(p_stages) + i_load_stage * kStageBytes,
                             head_of<Cache>(args, part.i_kv), loads.first, last);
      loads.advance(share, last);
    }
    async_copy_commit();  // with or without copies, so that groups count tiles
    tile_scores<Cache, kQueries, kAhead>(p_stage, p_queries, args.score_unit);
    const bool all_seen = first + kTile <= position + 1;
    const bool has_unseen = !Cache::kScaled && !all_seen && args.rows > 1;
    if constexpr (!Cache::kScaled) {
      if (has_unseen) {
        mark_unseen_values<Cache>(p_stage, marks, first, position, last);
      }
    }
    sync();  // the scores are here

    if (all_seen) {
      add_tile<Cache, true>(state, p_stage, first, sees);
    } else {
      add_tile<Cache, false>(state, p_stage, first, sees);
    }
    if constexpr (!Cache::kScaled) {
      if (has_unseen) {
        spoil_marked_dims(state, marks, position, sees);
      }
    }
    i_stage = i_stage + 1 == args.num_stages ? 0 : i_stage + 1;
    i_load_stage = i_load_stage + 1 == args.num_stages ? 0 : i_load_stage + 1;
    if (walk.is_last_of_leaf()) {
      store_leaf<Cache, kQueries>(args, state, sees, walk.leaf, position, part);
      reset(state);
    }
    walk.advance(share, last);
  }
}

}  // namespace bytebound
