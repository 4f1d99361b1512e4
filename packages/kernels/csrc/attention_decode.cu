// Gated attention decode, two kernels that overlap by dependent launch:
//
//   leaves   a number of blocks that the size of the cache decides. Block b serves kv head b % NKV
//            and has a share of the leaves of the context, as many positions as the others have
//            (attention_leaf.cuh):
//
//              leaves of a head   |0|1|2|3| 4 | 5 | 6 |  7  |  8  |  9  |
//              blocks of a head    a c b a  c   b   a    c     b     a
//
//            A block makes its queries itself: norm and rotary, into shared memory. Those that
//            have the newest positions make the new rows too, k with norm and rotary, and v,
//            rounded to the cache; tiles that were on their way before get them from shared memory,
//            later ones from the cache: everyone sees the same rounded numbers. A leaf yields a
//            maximum, a sum and an un-normalised output for each query, whoever computes it; K and
//            V tiles stream through a few stages of shared memory, across leaves.
//   merge    a block for 64 dims of a query: adds its leaves in a fixed order, divides, gates.
//
// The grid knows neither the position nor the length, so one captured graph serves them all. The
// cost beyond reading K and V once: NH * (DH + 2) floats for each leaf and row, written and read,
// which stays in the L2 (at 32 Ki positions 176 leaves: 3 % of the bytes of a bf16 cache for each
// row), and the norms of a row's queries in every block, while the first tiles are on their way.
//
// Short contexts are a chain of latencies, so little is left for the time after the wait. While the
// kernel before still runs, a block takes the position as it stands, finds its leaves, computes
// sines and cosines and asks the L2 for its first tile. After the wait it begins all its loads at
// once, rows before tiles, and reads the position again meanwhile; the cache and the rows are read
// after the wait alone. Should the position be another one, all of that is done again.
#include "attention_decode.h"

#include "cuda/attention_args.cuh"
#include "cuda/attention_leaf.cuh"
#include "cuda/attention_merge.cuh"
#include "cuda/attention_new_rows.cuh"
#include "cuda/attention_tile.cuh"
#include "cuda/attention_unseen.cuh"
#include "cuda/chunk.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/dynamic_shared.cuh"
#include "cuda/launch.h"

namespace bytebound {
namespace {

constexpr int kPartQueries = kMaxQueries;  // of one block; more are split into parts
constexpr int kMaxGroups = 1024;           // pairs of kv head and part
constexpr int kMaxHeads = 1024;
constexpr int kMaxStages = 4;
constexpr int kBlocksPerSm = 2;  // more would have shorter pipelines and less even shares
// Over a cache of up to so many positions one block with two stages does it. It has room beside the
// blocks of other kernels, where two wait for an empty multiprocessor: several rows gain at any of
// these lengths, one row below some 4 Ki.
constexpr int kShortCache = 8448;
constexpr int kShortStages = 2;
constexpr std::size_t kAlignment = 256;  // of the parts of the workspace

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

// Asks the L2 for the tile that the block loads first. More would get into the way of the merge of
// the call before.
template <typename Cache>
__device__ __forceinline__ void prefetch_tile(const HeadCache& head, int first, int end) {
  const int num_bytes = min(Cache::kTile, end - first) * Cache::kRowBytes;
  const int64_t o_tile = static_cast<int64_t>(first) * Cache::kRowBytes;
  prefetch_bytes(head.p_keys + o_tile, num_bytes);
  prefetch_bytes(head.p_values + o_tile, num_bytes);
}

// sees[m][h] - position is the row of the call that the query belongs to.
template <typename Cache, int kQueries>
__device__ __forceinline__ void store_leaf(const AttentionArgs& args,
                                           const AttentionState<kQueries>& state,
                                           const SeenPositions<kQueries>& sees,
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
      if (q < num_queries && leaf.start <= sees[m][h]) {
        const int i_row = sees[m][h] - position;
        const int64_t i_vector = i_row * (args.num_heads - group) + i_kv * group + q;
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
    attention_decode_leaves_kernel(__grid_constant__ const AttentionArgs args) {
  constexpr int kItemBytes = Cache::kRowBytes / kHeadDim;
  constexpr int kTile = Cache::kTile;
  constexpr int kStageBytes = TileStage<Cache>::kBytes;
  BYTEBOUND_DYNAMIC_SHARED(__align__(128) unsigned char, s_memory);
  __shared__ ValueMarks s_marks;
  __shared__ LeafShare s_share;
  __shared__ int s_position;
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
  const Scratch scratch(s_memory + (args.num_stages - 1) * kStageBytes, args);
  // Volatile, for this load and the one that counts are not to be merged. One thread loads it, for
  // it may change meanwhile and the block has to agree.
  const auto* p_position = static_cast<const volatile int*>(args.p_position);
  if (threadIdx.x == 0) {
    s_position = *p_position;
  }
  make_factors(args, scratch);
  for (int i = threadIdx.x; i < query_tiles(kQueries) * kQuerySteps * kWarp; i += kTileThreads) {
    s_queries[i] = make_uint4(0, 0, 0, 0);
  }
  SeenPositions<kQueries> sees;  // less the position, at first
#pragma unroll
  for (int m = 0; m < query_tiles(kQueries); ++m) {
#pragma unroll
    for (int h = 0; h < query_halves(kQueries); ++h) {
      const int q = i_first + 16 * m + static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * h;
      sees[m][h] = q / group;
    }
  }
  __syncthreads();
  int position = s_position;

  // All that follows from the position is made before the wait, and the loads begin right after it,
  // while the position is read again. It is hardly ever another one; then all is done once more.
  int last = -1;
  bool appends = false, rows_fit = false, is_first = true;
  RowTasks<kQueries> tasks = {};
  TileWalk<kTile> loads, walk;
  while (true) {
    last = is_in_range(position, args) ? position + args.rows - 1 : -1;
    make_turns(args, scratch, position);
    if (threadIdx.x < kWarp) {
      s_share.set(last + 1, i_block, num_blocks);
    }
    __syncthreads();
    loads = {};
    loads.enter(s_share, last);
    walk = loads;
    const bool has_leaves = s_share.num_leaves > 0;
    // The new rows lie in the last one or two leaves of the context, each the last of its block.
    // Both blocks append all rows, for each needs those of its own leaf now: the same bytes twice.
    // Tiles that are loaded ahead get them from the scratch, the others from the cache.
    const Leaf newest = leaf_of_index(has_leaves ? s_share.leaf(s_share.num_leaves - 1) : 0);
    appends = has_leaves && newest.start + newest.size > position;
    tasks.set(args, appends, i_kv, i_first, min(num_queries - i_first, kQueries));
    rows_fit = args.vector && Scratch::num_bytes(args, tasks.num) <= kStageBytes;
    if (is_first && has_leaves && threadIdx.x == 0) {
      prefetch_tile<Cache>(head, loads.first, loads.end);
    }
    if (is_first) {
      wait_for_previous_kernel();
      // Not earlier: the merge reads the position and the gates ahead of its own wait, so all that
      // came before this kernel has to be complete when that one starts.
      allow_next_kernel();
      is_first = false;
    }
    const int actual = *p_position;
    if (has_leaves && rows_fit) {
      begin_load_rows(tasks, scratch, args.half_rotary);
    }
    async_copy_commit();
    for (int i = 0; i < args.num_stages - 1; ++i) {
      if (loads.first <= last) {
        begin_load_tile<Cache>(stages + i * kStageBytes, head, loads.first, position - 1);
        loads.advance(s_share, last);
      }
      async_copy_commit();
    }
    if (actual == position) {
      break;
    }
    position = actual;
    async_copy_wait();
    __syncthreads();
  }
  if (last < walk.first) {
    return;  // a block without leaves
  }
  if (args.num_stages == 2) {
    async_copy_wait_but<1>();
  } else if (args.num_stages == 3) {
    async_copy_wait_but<2>();
  } else {
    async_copy_wait_but<3>();
  }
  make_rows<Cache, kQueries>(args, tasks, scratch, s_queries, i_kv, i_first, position, rows_fit);
  if (appends) {
    async_copy_wait();  // what was loaded ahead is complete
    __syncthreads();
    TileWalk<kTile> ahead = walk;
    for (int i = 0; i < args.num_stages - 1 && ahead.first <= last; ++i) {
      if (ahead.first + kTile > position) {
        place_new_rows<Cache>(s_memory + i * kStageBytes, scratch, ahead.first, position, last);
      }
      ahead.advance(s_share, last);
    }
    if (ahead.first <= last) {
      __threadfence();  // the other tiles are copied from the cache, past the L1
    }
  }
  __syncthreads();

#pragma unroll
  for (int m = 0; m < query_tiles(kQueries); ++m) {
#pragma unroll
    for (int h = 0; h < query_halves(kQueries); ++h) {
      sees[m][h] += position;
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
      store_leaf<Cache, kQueries>(args, state, sees, walk.leaf, position, i_kv, i_first,
                                  num_queries);
      reset(state);
    }
    walk.advance(s_share, last);
  }
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
Status launch_leaves(AttentionArgs args, void* stream) {
  const auto kernel = attention_decode_leaves_kernel<Cache, kQueries>;
  int device = 0, num_sms = 0, block_limit = 0, blocks_per_sm = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&block_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  const auto static_bytes = static_cast<int>(sizeof(LeafShare) + sizeof(int) + sizeof(ValueMarks));
  const auto fits = [&](int num_stages) {
    return leaves_shared_bytes<Cache, kQueries>(num_stages) + static_bytes <= block_limit;
  };
  // The same limit in every launch, for another thread may be about to launch with more.
  int largest = kMaxStages;
  while (largest > 2 && !fits(largest)) {
    --largest;
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 leaves_shared_bytes<Cache, kQueries>(largest));
  }
  const bool is_short = args.max_positions <= kShortCache;
  const int most_blocks = is_short ? 1 : kBlocksPerSm;
  // As many stages as leave room for all blocks of an SM; else two stages, which fit everywhere.
  LaunchOptions options;
  options.overlap_previous = true;
  for (int i = is_short ? kShortStages : largest;
       i >= 2 && blocks_per_sm < most_blocks && error == cudaSuccess; --i) {
    args.num_stages = i;
    options.shared_bytes = leaves_shared_bytes<Cache, kQueries>(i);
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, kernel, kTileThreads,
                                                          options.shared_bytes);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // reported here, so it must not surface again
    return error;
  }
  // As many blocks as run at once, the same number for each kv head, no more than have a leaf.
  blocks_per_sm = blocks_per_sm < most_blocks ? blocks_per_sm : most_blocks;
  if (blocks_per_sm > 1) {
    // Both at once, at the price of a multiprocessor that first has to be empty.
    options.shared_per_sm = shared_of_blocks(blocks_per_sm, options.shared_bytes + static_bytes);
  }
  const int num_groups = args.num_kv_heads * args.num_parts;
  const int wanted = num_sms * blocks_per_sm / num_groups;
  const int blocks = wanted < 1 ? 1 : wanted > args.max_leaves ? args.max_leaves : wanted;
  return launch_with(options, kernel, dim3(blocks * num_groups), dim3(kTileThreads), stream, args);
}

template <typename T, typename Cache>
Status run(const AttentionArgs& args, void* stream) {
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
  const auto merge = args.rows <= kMergeFewRows ? attention_decode_merge_kernel<T, true>
                                                : attention_decode_merge_kernel<T, false>;
  return launch_with(overlap, merge, dim3(args.rows * args.num_heads, kHeadDim / kMergeDims),
                     dim3(kMergeThreads), stream, args);
}

template <typename T>
Status run_with_cache(const AttentionArgs& args, DType cache_dtype, void* stream) {
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
  const AttentionArgs args = {p.q_gate,
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
