// Gated attention decode, two kernels that overlap by dependent launch:
//
//   leaves   a fixed number of blocks. Block b serves kv head b % NKV and has a share of the leaves
//            of the context, as many positions as the others have (attention_leaf.cuh):
//
//              leaves of a head   |0|1|2|3| 4 | 5 | 6 |  7  |  8  |  9  |
//              blocks of a head    a c b a  c   b   a    c     b     a
//
//            A block makes its queries itself: norm and rotary, into shared memory. Those that
//            begin with the newest positions append them first, k with norm and rotary, and v,
//            rounded to the cache, and read them back: everyone sees the same rounded numbers. A
//            leaf yields a maximum, a sum and an un-normalised output for each query, whoever
//            computes it; K and V tiles stream through a few stages of shared memory, across
//            leaves.
//   merge    a block for 64 dims of a query: adds its leaves in a fixed order, divides, gates.
//
// The grid knows neither the position nor the length, so one captured graph serves them all. The
// cost beyond reading K and V once: NH * (DH + 2) floats for each leaf and row, written and read,
// which stays in the L2 (at 32 Ki positions 176 leaves: 3 % of the bytes of a bf16 cache for each
// row), and the norms of a row's queries in every block, while the first tiles are on their way.
//
// While the kernel before still runs, a block asks the L2 for its first tiles. That is a hint and
// changes nothing but time, so it may come from a position that is out of date: the position and
// the cache are read after the wait.
#include "attention_decode.h"

#include "cuda/attention_leaf.cuh"
#include "cuda/attention_rows.cuh"
#include "cuda/attention_tile.cuh"
#include "cuda/attention_unseen.cuh"
#include "cuda/chunk.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"

namespace bytebound {
namespace {

constexpr int kPartQueries = kMaxQueries;  // of one block; more are split into parts
constexpr int kMaxGroups = 1024;           // pairs of kv head and part
constexpr int kMaxHeads = 1024;
constexpr int kMaxStages = 4;
constexpr int kBlocksPerSm = 2;  // more would have shorter pipelines and less even shares
constexpr int kMergeDims = 64;
constexpr int kMergeLanes = kMergeDims / 4;
constexpr int kMergeWays = 16;   // leaves that are added side by side
constexpr int kMergeAhead = 12;  // of one way, that are loaded before anything is known of them
constexpr int kMergeThreads = kMergeLanes * kMergeWays;
constexpr std::size_t kAlignment = 256;  // of the parts of the workspace

struct KernelArgs {
  const void* p_q_gate;
  const void* p_k;
  const void* p_v;
  const void* p_q_norm;
  const void* p_k_norm;
  const float* p_inv_freq;
  const int* p_position;
  unsigned char* p_k_cache;
  unsigned char* p_v_cache;
  float* p_k_scale;
  float* p_v_scale;
  void* p_out;
  float2* p_max_sum;  // [R, NH, leaf]
  float* p_partial;   // [R, NH, leaf, DH]
  int64_t q_gate_row_stride;
  int64_t k_row_stride;
  int64_t v_row_stride;
  int64_t out_row_stride;
  int64_t cache_head_stride;  // in elements
  int64_t scale_head_stride;
  int rows;
  int num_heads;
  int num_kv_heads;
  int num_parts;
  int max_positions;
  int max_leaves;
  int num_stages;   // 2 to kMaxStages
  int half_rotary;  // rotary_dim / 2
  float eps;
  float score_unit;  // scale * log2(e): scores are powers of two
  bool half_rows;    // q_gate, k, v and out are float16, else bfloat16
  bool float_norms;  // the norms' weights are float32, else as the rows
  bool vector;       // every row of q_gate, k and v is 16-byte aligned
};

// Whether the position that the device holds leaves room for the rows.
__device__ __forceinline__ bool is_in_range(int position, const KernelArgs& args) {
  return position >= 0 && position <= args.max_positions - args.rows;
}

// A lane's share of a norm's weights.
__device__ __forceinline__ void load_norm(const KernelArgs& args,
                                          const void* p_norm,
                                          float (&b)[kChunk]) {
  if (args.float_norms) {
    load_chunk<false>(static_cast<const float*>(p_norm), threadIdx.x % kWarp * kChunk, kHeadDim, b);
  } else {
    uint32_t pairs[4];
    load_pairs(p_norm, 0, false, pairs);
    to_numbers(b, pairs, args.half_rows);
  }
}

// What a lane needs of the constants.
struct RowConstants {
  float q_norm[kChunk];
  float k_norm[kChunk];
  float inv_freq[kChunk];
};

__device__ __forceinline__ void load_constants(const KernelArgs& args, RowConstants& b) {
  load_norm(args, args.p_q_norm, b.q_norm);
  load_norm(args, args.p_k_norm, b.k_norm);
  const int i_lane = threadIdx.x % kWarp;
  const int half_lanes = args.half_rotary / kChunk;
  const int i_freq = i_lane < 2 * half_lanes ? i_lane % half_lanes * kChunk : args.half_rotary;
  load_chunk<false>(args.p_inv_freq, i_freq, args.half_rotary, b.inv_freq);
}

// The part's queries, as A operands in shared memory and zeros where there is none; before them, if
// `appends`, the new rows of the kv head. A warp takes adjacent vectors, which mostly share their
// position; the next one is loaded while one is computed.
template <typename Cache, int kQueries>
__device__ __forceinline__ void make_rows(const KernelArgs& args,
                                          const RowConstants& constants,
                                          uint4* s_queries,
                                          int position,
                                          int i_kv,
                                          int i_first,
                                          bool appends) {
  using Compute = typename Cache::Compute;
  constexpr int kItemBytes = Cache::kRowBytes / kHeadDim;
  const int i_warp = threadIdx.x / kWarp;
  const int group = args.num_heads / args.num_kv_heads;
  const int num_queries = min(group * args.rows - i_first, kQueries);
  const int num_new = appends ? 2 * args.rows : 0;  // keys, then values
  const int share = (num_new + num_queries + kTileWarps - 1) / kTileWarps;
  const int i_end = min((i_warp + 1) * share, num_new + num_queries);

  const auto load_task = [&](int i_task, uint32_t (&pairs)[4]) {
    if (i_task < num_new) {
      const bool is_value = i_task >= args.rows;
      const int i_row = is_value ? i_task - args.rows : i_task;
      load_pairs(is_value ? args.p_v : args.p_k,
                 i_row * (is_value ? args.v_row_stride : args.k_row_stride) + i_kv * kHeadDim,
                 args.vector, pairs);
    } else if (i_task < i_end) {
      const int q = i_first + i_task - num_new;
      load_pairs(args.p_q_gate,
                 q / group * args.q_gate_row_stride + (i_kv * group + q % group) * 2 * kHeadDim,
                 args.vector, pairs);
    }
  };
  const auto store_query = [&](int i_query, const uint32_t (&pairs)[4]) {
    uint4* p_tile = s_queries + i_query / 16 * kQuerySteps * kWarp;
    Cache::store_query(reinterpret_cast<uint32_t*>(p_tile), i_query % 16, pairs);
  };

  uint32_t pairs[4] = {}, next_pairs[4] = {};
#pragma unroll 1
  for (int i = num_queries + i_warp; i < 16 * query_tiles(kQueries); i += kTileWarps) {
    store_query(i, pairs);
  }
  RowTurn turn;
  int i_turn_row = -1;  // the row that it is of
  load_task(i_warp * share, pairs);
#pragma unroll 1
  for (int i_task = i_warp * share; i_task < i_end; ++i_task) {
    load_task(i_task + 1, next_pairs);
    const bool is_query = i_task >= num_new;
    const bool is_value = !is_query && i_task >= args.rows;
    const int i_query = i_task - num_new;
    const int i_row = is_query   ? (i_first + i_query) / group
                      : is_value ? i_task - args.rows
                                 : i_task;
    float b[kChunk];
    to_numbers(b, pairs, args.half_rows);
    if (!is_value) {
      float b_weight[kChunk];
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        b_weight[j] = is_query ? constants.q_norm[j] : constants.k_norm[j];
      }
      norm_row(b, b_weight, args.eps);
      if (i_row != i_turn_row) {
        set_turn(turn, constants.inv_freq, position + i_row);
        i_turn_row = i_row;
      }
      turn_row(b, turn, args.half_rotary);
    }
    if (is_query) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        pairs[j] = pack_pair(b[2 * j], b[2 * j + 1], Compute{});
      }
      store_query(i_query, pairs);
    } else {
      append_row(
          Cache{}, b,
          (is_value ? args.p_v_cache : args.p_k_cache) + i_kv * args.cache_head_stride * kItemBytes,
          (is_value ? args.p_v_scale : args.p_k_scale) + i_kv * args.scale_head_stride,
          position + i_row);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      pairs[j] = next_pairs[j];
    }
  }
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

// Asks the L2 for the tiles that the block loads first.
template <typename Cache>
__device__ __forceinline__ void prefetch_tiles(const LeafShare& share,
                                               const HeadCache& head,
                                               int num_tiles,
                                               int last) {
  TileWalk<Cache::kTile> walk = {};
  walk.enter(share, last);
#pragma unroll 1
  for (int i = 0; i < num_tiles && walk.first <= last; ++i) {
    const int num_bytes = min(Cache::kTile, last + 1 - walk.first) * Cache::kRowBytes;
    const int64_t o_tile = static_cast<int64_t>(walk.first) * Cache::kRowBytes;
    prefetch_bytes(head.p_keys + o_tile, num_bytes);
    prefetch_bytes(head.p_values + o_tile, num_bytes);
    walk.advance(share, last);
  }
}

template <typename Cache, int kQueries>
__device__ __forceinline__ void store_leaf(const KernelArgs& args,
                                           const AttentionState<kQueries>& state,
                                           const Leaf& leaf,
                                           int position,
                                           int i_kv,
                                           int i_first,
                                           int num_queries) {
  const int group = args.num_heads / args.num_kv_heads;
  const int i_warp = threadIdx.x / kWarp;
#pragma unroll
  for (int m = 0; m < state.kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < state.kHalves; ++h) {
      float sum = state.sum[m][h];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const int q = i_first + 16 * m + threadIdx.x % kWarp / 4 + 8 * h;
      // A row that sees nothing of the leaf does not read it either.
      if (q < num_queries && leaf.start <= position + q / group) {
        const int64_t i_vector = q / group * args.num_heads + i_kv * group + q % group;
        const int64_t i_partial = i_vector * args.max_leaves + leaf.index;
        Cache::store_row(args.p_partial + i_partial * kHeadDim, state.out[m], i_warp, h);
        if (threadIdx.x < kWarp && threadIdx.x % 4 == 0) {
          args.p_max_sum[i_partial] = make_float2(state.max[m][h], sum);
        }
      }
    }
  }
}

template <typename Cache, int kQueries>
constexpr int leaves_shared_bytes(int num_stages) {
  return num_stages * TileStage<Cache>::kBytes +
         query_tiles(kQueries) * kQuerySteps * kWarp * kChunkBytes;
}

template <typename Cache, int kQueries>
__global__ void __launch_bounds__(kTileThreads, kBlocksPerSm)
    attention_decode_leaves_kernel(__grid_constant__ const KernelArgs args) {
  constexpr int kItemBytes = Cache::kRowBytes / kHeadDim;
  constexpr int kTile = Cache::kTile;
  constexpr int kStageBytes = TileStage<Cache>::kBytes;
  extern __shared__ __align__(128) unsigned char s_memory[];
  __shared__ ValueMarks s_marks;
  __shared__ LeafShare s_share;
  auto* s_queries = reinterpret_cast<uint4*>(s_memory + args.num_stages * kStageBytes);

  const int num_groups = args.num_kv_heads * args.num_parts;
  const int i_group = blockIdx.x % num_groups;
  const int i_kv = i_group % args.num_kv_heads;
  const int i_first = i_group / args.num_kv_heads * kPartQueries;
  const int group = args.num_heads / args.num_kv_heads;
  const int num_queries = group * args.rows;
  const int i_block = blockIdx.x / num_groups;  // of those of its group
  const int num_blocks = gridDim.x / num_groups;
  const HeadCache head = {args.p_k_cache + i_kv * args.cache_head_stride * kItemBytes,
                          args.p_v_cache + i_kv * args.cache_head_stride * kItemBytes,
                          args.p_k_scale + i_kv * args.scale_head_stride,
                          args.p_v_scale + i_kv * args.scale_head_stride};
  const uint32_t stages = shared_address(s_memory);

  if (threadIdx.x < kMaxRows * kMarkWords) {
    (&s_marks[0][0])[threadIdx.x] = 0;
  }
  RowConstants constants;
  load_constants(args, constants);
  // Volatile, for this load and the one that counts are not to be merged.
  const auto* p_position = static_cast<const volatile int*>(args.p_position);
  if (threadIdx.x == 0) {
    const int early = *p_position;
    const int num_positions = is_in_range(early, args) ? early + args.rows : 0;
    s_share.set(num_positions, i_block, num_blocks);
    prefetch_tiles<Cache>(s_share, head, args.num_stages, num_positions - 1);
  }
  wait_for_previous_kernel();
  // Not earlier: the merge reads the position and the gates ahead of its own wait, so all that came
  // before this kernel has to be complete when that one starts.
  allow_next_kernel();
  const int position = *p_position;
  const int last = is_in_range(position, args) ? position + args.rows - 1 : -1;
  if (threadIdx.x == 0 && s_share.num_positions != last + 1) {
    s_share.set(last + 1, i_block, num_blocks);
  }
  __syncthreads();
  if (s_share.num_leaves == 0) {
    return;
  }
  TileWalk<kTile> loads = {};
  loads.enter(s_share, last);
  TileWalk<kTile> walk = loads;

  // The new rows lie in the last one or two leaves of the context, each the last of its block. Both
  // blocks append all rows, for each needs those of its own leaf now: the same bytes twice. That
  // has time until the tiles that are loaded ahead reach them.
  const Leaf newest = leaf_of_index(s_share.leaf(s_share.num_leaves - 1));
  const bool appends = newest.start + newest.size > position;
  bool appends_first = false;
  if (appends) {
    TileWalk<kTile> ahead = loads;
    for (int i = 0; i < args.num_stages - 1 && ahead.first <= last; ++i) {
      appends_first = appends_first || ahead.first + kTile > position;
      ahead.advance(s_share, last);
    }
  }
  // Mostly the tiles are on their way while the queries are made. A loop of two steps serves both
  // orders with one copy of the code.
#pragma unroll 1
  for (int i_step = 0; i_step < 2; ++i_step) {
    if ((i_step == 0) == appends_first) {
      make_rows<Cache, kQueries>(args, constants, s_queries, position, i_kv, i_first, appends);
      if (appends) {
        __threadfence();  // the copies that follow go past the L1
        __syncthreads();
      }
      continue;
    }
    for (int i = 0; i < args.num_stages - 1; ++i) {
      if (loads.first <= last) {
        begin_load_tile<Cache>(stages + i * kStageBytes, head, loads.first, last);
        loads.advance(s_share, last);
      }
      async_copy_commit();
    }
  }

  SeenPositions<kQueries> sees;
#pragma unroll
  for (int m = 0; m < query_tiles(kQueries); ++m) {
#pragma unroll
    for (int h = 0; h < query_halves(kQueries); ++h) {
      const int q = i_first + 16 * m + static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * h;
      sees[m][h] = position + q / group;
    }
  }

  AttentionState<kQueries> state;
  reset(state);
  int i_stage = 0;
  int i_load_stage = args.num_stages - 1;
  while (walk.first <= last) {
    unsigned char* p_stage = s_memory + i_stage * kStageBytes;
    const int first = walk.first;
    if (args.num_stages == 2) {
      async_copy_wait_but<0>();
    } else if (args.num_stages == 3) {
      async_copy_wait_but<1>();
    } else {
      async_copy_wait_but<2>();
    }
    __syncthreads();  // the tile is here, and nobody reads the stage before it any more
    if (loads.first <= last) {
      begin_load_tile<Cache>(stages + i_load_stage * kStageBytes, head, loads.first, last);
      loads.advance(s_share, last);
    }
    async_copy_commit();  // with or without copies, so that groups count tiles
    tile_scores<Cache, kQueries>(p_stage, s_queries, args.score_unit);
    const bool all_seen = first + kTile <= position + 1;
    const bool has_unseen = !Cache::kScaled && !all_seen && args.rows > 1;
    if constexpr (!Cache::kScaled) {
      if (has_unseen) {
        mark_unseen_values<Cache>(p_stage, s_marks, first, position, last);
      }
    }
    __syncthreads();  // the scores are here

    if (all_seen) {
      add_tile<Cache, true>(state, p_stage, first, sees);
    } else {
      add_tile<Cache, false>(state, p_stage, first, sees);
    }
    if constexpr (!Cache::kScaled) {
      if (has_unseen) {
        spoil_marked_dims(state, s_marks, position, sees);
      }
    }
    i_stage = i_stage + 1 == args.num_stages ? 0 : i_stage + 1;
    i_load_stage = i_load_stage + 1 == args.num_stages ? 0 : i_load_stage + 1;
    if (walk.is_last_of_leaf()) {
      store_leaf<Cache, kQueries>(args, state, walk.leaf, position, i_kv, i_first, num_queries);
      reset(state);
    }
    walk.advance(s_share, last);
  }
}

template <typename T>
__global__ void __launch_bounds__(kMergeThreads)
    attention_decode_merge_kernel(__grid_constant__ const KernelArgs args) {
  __shared__ float s_max[kMergeWays];
  __shared__ float4 s_out[kMergeWays][kMergeLanes];
  __shared__ float s_sum[kMergeWays];
  const int i_way = threadIdx.x / kMergeLanes;
  const int i_lane = threadIdx.x % kMergeLanes;
  const int i_vector = blockIdx.x;  // row and head
  const int i_row = i_vector / args.num_heads;
  const int i_head = i_vector % args.num_heads;
  const int i_dim = blockIdx.y * kMergeDims + i_lane * 4;

  allow_next_kernel();
  // Written before the leaves' kernel, which let this one start when all of that was complete.
  const int position = *args.p_position;
  const T* p_gate = static_cast<const T*>(args.p_q_gate) + i_row * args.q_gate_row_stride +
                    i_head * 2 * kHeadDim + kHeadDim;
  const int i_own = blockIdx.y * kMergeDims + threadIdx.x % kMergeDims;
  const float b_gate = to_float(p_gate[i_own]);
  wait_for_previous_kernel();
  T* p_out = static_cast<T*>(args.p_out) + i_row * args.out_row_stride + i_head * kHeadDim + i_dim;
  if (!is_in_range(position, args)) {
    if (i_way == 0) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        p_out[j] = from_float<T>(__int_as_float(0x7fffffff));
      }
    }
    return;
  }
  const int count = num_leaves(position + i_row + 1);
  const int64_t i_partial = static_cast<int64_t>(i_vector) * args.max_leaves;
  const float2* p_max_sum = args.p_max_sum + i_partial;
  const auto* p_partial =
      reinterpret_cast<const float4*>(args.p_partial + i_partial * kHeadDim + i_dim);

  float4 b_ahead[kMergeAhead];
#pragma unroll
  for (int j = 0; j < kMergeAhead; ++j) {
    const int i = i_way + j * kMergeWays;
    b_ahead[j] = i < count ? p_partial[static_cast<int64_t>(i) * (kHeadDim / 4)]
                           : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  float largest = kMinusInfinity;
  for (int i = threadIdx.x; i < count; i += kMergeThreads) {
    largest = fmaxf(largest, p_max_sum[i].x);
  }
#pragma unroll
  for (int distance = kMergeLanes / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
  }
  if (i_lane == 0) {
    s_max[i_way] = largest;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMergeWays; ++i) {
    largest = fmaxf(largest, s_max[i]);
  }

  // Way w adds leaves w, w + 16, w + 32, ... in this order, then the ways are added in theirs.
  float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float sum = 0.0f;
  const auto add_leaf = [&](int i, const float4& partial) {
    const float2 max_sum = p_max_sum[i];
    const float weight = exp2_fast(max_sum.x - largest);
    sum = fmaf(max_sum.y, weight, sum);
    out.x = fmaf(partial.x, weight, out.x);
    out.y = fmaf(partial.y, weight, out.y);
    out.z = fmaf(partial.z, weight, out.z);
    out.w = fmaf(partial.w, weight, out.w);
  };
#pragma unroll
  for (int j = 0; j < kMergeAhead; ++j) {
    if (i_way + j * kMergeWays < count) {
      add_leaf(i_way + j * kMergeWays, b_ahead[j]);
    }
  }
#pragma unroll 4
  for (int i = i_way + kMergeAhead * kMergeWays; i < count; i += kMergeWays) {
    add_leaf(i, p_partial[static_cast<int64_t>(i) * (kHeadDim / 4)]);
  }
  s_out[i_way][i_lane] = out;
  if (i_lane == 0) {
    s_sum[i_way] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= kMergeDims) {
    return;
  }
  // From here on one dim for each thread.
  float total = 0.0f;
  float total_sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kMergeWays; ++i) {
    total += reinterpret_cast<const float*>(s_out[i])[threadIdx.x];
    total_sum += s_sum[i];
  }
  const float gate = 1.0f / (1.0f + expf(-b_gate));
  static_cast<T*>(args.p_out)[i_row * args.out_row_stride + i_head * kHeadDim + i_own] =
      from_float<T>(total / total_sum * gate);
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Where the parts of the workspace begin.
struct Workspace {
  std::size_t partial, end;

  Workspace(std::int64_t rows, std::int64_t num_heads, std::int64_t max_positions) {
    const std::size_t vectors = rows * num_heads;
    const std::size_t leaves = num_leaves(static_cast<int>(max_positions));
    partial = aligned(vectors * leaves * sizeof(float2));
    end = partial + vectors * leaves * kHeadDim * sizeof(float);
  }
};

template <typename Cache, int kQueries>
Status launch_leaves(KernelArgs args, void* stream) {
  const auto kernel = attention_decode_leaves_kernel<Cache, kQueries>;
  int device = 0, num_sms = 0, block_limit = 0, blocks_per_sm = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&block_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  // As many stages as leave room for two blocks on an SM; else two stages, which fit everywhere.
  const auto static_bytes = static_cast<int>(sizeof(LeafShare) + sizeof(ValueMarks));
  LaunchOptions options;
  options.overlap_previous = true;
  for (int i = kMaxStages; i >= 2 && blocks_per_sm < kBlocksPerSm && error == cudaSuccess; --i) {
    args.num_stages = i;
    options.shared_bytes = leaves_shared_bytes<Cache, kQueries>(i);
    const auto num_bytes = static_cast<int>(options.shared_bytes);
    if (num_bytes + static_bytes > block_limit && i > 2) {
      continue;
    }
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, num_bytes);
    if (error == cudaSuccess) {
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, kernel, kTileThreads,
                                                            options.shared_bytes);
    }
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // reported here, so it must not surface again
    return error;
  }
  // As many blocks as run at once, the same number for each kv head, no more than have a leaf.
  blocks_per_sm = blocks_per_sm < kBlocksPerSm ? blocks_per_sm : kBlocksPerSm;
  const int num_groups = args.num_kv_heads * args.num_parts;
  const int wanted = num_sms * blocks_per_sm / num_groups;
  const int blocks = wanted < 1 ? 1 : wanted > args.max_leaves ? args.max_leaves : wanted;
  return launch_with(options, kernel, dim3(blocks * num_groups), dim3(kTileThreads), stream, args);
}

template <typename T, typename Cache>
Status run(const KernelArgs& args, void* stream) {
  const int queries = args.rows * args.num_heads / args.num_kv_heads;
  const Status status = queries <= 8    ? launch_leaves<Cache, 8>(args, stream)
                        : queries <= 16 ? launch_leaves<Cache, 16>(args, stream)
                        : queries <= 32 ? launch_leaves<Cache, 32>(args, stream)
                                        : launch_leaves<Cache, kMaxQueries>(args, stream);
  if (status != kOk) {
    return status;
  }
  LaunchOptions overlap;
  overlap.overlap_previous = true;
  return launch_with(overlap, attention_decode_merge_kernel<T>,
                     dim3(args.rows * args.num_heads, kHeadDim / kMergeDims), dim3(kMergeThreads),
                     stream, args);
}

template <typename T>
Status run_with_cache(const KernelArgs& args, DType cache_dtype, void* stream) {
  switch (cache_dtype) {
    case DType::kFloat16:
      return run<T, WideCache<__half>>(args, stream);
    case DType::kBFloat16:
      return run<T, WideCache<__nv_bfloat16>>(args, stream);
    case DType::kFloat8E4M3:
      return run<T, Float8Cache>(args, stream);
    default:
      return kNotInstantiated;
  }
}

bool is_vector(const void* p_first, std::int64_t row_stride) {
  return reinterpret_cast<std::uintptr_t>(p_first) % kAccessBytes == 0 && row_stride % kChunk == 0;
}

bool sizes_fit(const AttentionDecodeParams& p) {
  const bool heads = p.num_kv_heads >= 1 && p.num_heads >= p.num_kv_heads &&
                     p.num_heads <= kMaxHeads && p.num_heads % p.num_kv_heads == 0;
  return heads && p.rows >= 1 && p.rows <= kMaxRows && p.max_positions >= p.rows &&
         p.max_positions <= kMaxPositions && p.rotary_dim >= 16 && p.rotary_dim <= kHeadDim &&
         p.rotary_dim % 16 == 0;
}

}  // namespace

std::size_t attention_decode_workspace_bytes(std::int64_t rows,
                                             std::int64_t num_heads,
                                             std::int64_t max_positions) {
  return Workspace(rows, num_heads, max_positions).end;
}

Status attention_decode(const AttentionDecodeParams& p, void* stream) {
  if (!sizes_fit(p)) {
    return kSizeOutOfRange;
  }
  if (p.norm_dtype != p.x_dtype && p.norm_dtype != DType::kFloat32) {
    return kNotInstantiated;
  }
  const std::int64_t group = p.num_heads / p.num_kv_heads;
  const int num_parts = static_cast<int>((p.rows * group + kPartQueries - 1) / kPartQueries);
  if (p.num_kv_heads * num_parts > kMaxGroups) {
    return kSizeOutOfRange;
  }
  const DeviceGuard guard(p.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  constexpr double kLog2E = 1.4426950408889634;
  auto* p_workspace = static_cast<unsigned char*>(p.workspace);
  const Workspace parts(p.rows, p.num_heads, p.max_positions);
  const KernelArgs args = {p.q_gate,
                           p.k,
                           p.v,
                           p.q_norm,
                           p.k_norm,
                           p.inv_freq,
                           p.position,
                           static_cast<unsigned char*>(p.k_cache),
                           static_cast<unsigned char*>(p.v_cache),
                           p.k_scale,
                           p.v_scale,
                           p.out,
                           reinterpret_cast<float2*>(p_workspace),
                           reinterpret_cast<float*>(p_workspace + parts.partial),
                           p.q_gate_row_stride,
                           p.k_row_stride,
                           p.v_row_stride,
                           p.out_row_stride,
                           p.cache_head_stride,
                           p.scale_head_stride,
                           static_cast<int>(p.rows),
                           static_cast<int>(p.num_heads),
                           static_cast<int>(p.num_kv_heads),
                           num_parts,
                           static_cast<int>(p.max_positions),
                           num_leaves(static_cast<int>(p.max_positions)),
                           0,  // set where the device is asked
                           static_cast<int>(p.rotary_dim / 2),
                           p.eps,
                           static_cast<float>(p.scale * kLog2E),
                           p.x_dtype == DType::kFloat16,
                           p.norm_dtype == DType::kFloat32,
                           is_vector(p.q_gate, p.q_gate_row_stride) &&
                               is_vector(p.k, p.k_row_stride) && is_vector(p.v, p.v_row_stride)};
  switch (p.x_dtype) {
    case DType::kFloat16:
      return run_with_cache<__half>(args, p.cache_dtype, stream);
    case DType::kBFloat16:
      return run_with_cache<__nv_bfloat16>(args, p.cache_dtype, stream);
    default:
      return kNotInstantiated;
  }
}

}  // namespace bytebound
