// Gated attention decode, three kernels that overlap by dependent launch:
//
//   append   a warp for each vector of 256: norm and rotary of q and k, then q to the workspace,
//            and k and v rounded into the cache. From there on all read the same rounded numbers.
//   leaves   a fixed number of blocks. Block b serves kv head b % NKV and takes leaves of its
//            context, the large ones at its end first, each from whoever is free (an integer
//            ticket):
//
//              leaves of a head   |0|1|2|3| 4 | 5 | 6 |  7  |  8  |  9  |     (attention_leaf.cuh)
//              blocks of a head    .......... c   b   a     c     b     a
//
//            A leaf yields a maximum, a sum and an un-normalised output for each query, whoever
//            computes it; K and V tiles stream through two stages of shared memory, across leaves.
//   merge    a block for 64 dims of a query: adds its leaves in a fixed order, divides, gates.
//
// The grid knows neither the position nor the length, so one captured graph serves them all. The
// cost beyond reading K and V once: NH * (DH + 2) floats for each leaf and row, written and read,
// which stays in the L2. At 32 Ki positions, 176 leaves, that is 3 % of the bytes of a bf16 cache
// for each row.
#include "attention_decode.h"

#include <cuda_fp8.h>

#include "cuda/attention_leaf.cuh"
#include "cuda/attention_tile.cuh"
#include "cuda/attention_unseen.cuh"
#include "cuda/chunk.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"

namespace bytebound {
namespace {

constexpr int kPartQueries = 16 * kMaxTilesM;  // queries of one block; more are split into parts
constexpr int kMaxGroups = 1024;               // pairs of kv head and part
constexpr int kMaxHeads = 1024;
constexpr int kAppendWarps = 4;
constexpr int kMergeDims = 64;
constexpr int kMergeLanes = kMergeDims / 4;
constexpr int kMergeWays = 16;  // leaves that are added side by side
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
  int* p_tickets;     // [kv head and part]
  void* p_queries;    // [R, NH, DH] of the cache's compute type
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
  int half_rotary;  // rotary_dim / 2
  float eps;
  float score_unit;  // scale * log2(e): scores are powers of two
  bool float_norms;  // the norms' weights are float32
  bool vector;       // every row of q_gate, k and v is 16-byte aligned
};

// Whether the position that the device holds leaves room for the rows.
__device__ __forceinline__ bool is_in_range(int position, const KernelArgs& args) {
  return position >= 0 && position <= args.max_positions - args.rows;
}

template <typename T>
__device__ __forceinline__ void load_row(const T* p_row, bool vector, float (&b)[kChunk]) {
  const int i_first = threadIdx.x % kWarp * kChunk;
  if (vector) {
    load_chunk<true>(p_row, i_first, kHeadDim, b);
  } else {
    load_chunk<false>(p_row, i_first, kHeadDim, b);
  }
}

// RMSNorm of the warp's row with "1 + w".
__device__ __forceinline__ void norm_row(float (&b)[kChunk],
                                         const float (&b_weight)[kChunk],
                                         float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    sum = fmaf(b[j], b[j], sum);
  }
  const float inverse_rms = __frsqrt_rn(warp_sum(sum) / kHeadDim + eps);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b[j] = (b[j] * inverse_rms) * (1.0f + b_weight[j]);
  }
}

// Turns dims i and i + half_rotary by position * inv_freq[i]. That product is rounded to float32,
// as the model defines it; its whole turns are taken off in double, so it is exact at any position.
__device__ __forceinline__ void turn_row(float (&b)[kChunk],
                                         const float (&b_inv_freq)[kChunk],
                                         int position,
                                         int half_rotary) {
  constexpr double kTurnsPerRadian = 0.15915494309189533577;
  const int i_lane = threadIdx.x % kWarp;
  const int half_lanes = half_rotary / kChunk;
  const int i_partner = i_lane < half_lanes ? i_lane + half_lanes : i_lane - half_lanes;
  const float sign = i_lane < half_lanes ? -1.0f : 1.0f;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const float partner = __shfl_sync(kAllLanes, b[j], i_partner % kWarp);
    const float angle = __fmul_rn(static_cast<float>(position), b_inv_freq[j]);
    const double turns = static_cast<double>(angle) * kTurnsPerRadian;
    float sine, cosine;
    sincospif(static_cast<float>(2.0 * (turns - rint(turns))), &sine, &cosine);
    if (i_lane < 2 * half_lanes) {
      b[j] = fmaf(b[j], cosine, sign * __fmul_rn(partner, sine));
    }
  }
}

template <typename T>
__device__ __forceinline__ void append_row(const WideCache<T>& /* cache */,
                                           const float (&b)[kChunk],
                                           unsigned char* p_head,
                                           float* /* p_scales */,
                                           int position) {
  T* p_row = reinterpret_cast<T*>(p_head) + static_cast<int64_t>(position) * kHeadDim;
  store_chunk<true>(p_row, threadIdx.x % kWarp * kChunk, kHeadDim, b);
}

// scale = max |x| / 448, so that the largest number of the row is the largest of e4m3. A row that
// is not finite gets a NaN scale, and zeros.
__device__ __forceinline__ void append_row(const Float8Cache& /* cache */,
                                           const float (&b)[kChunk],
                                           unsigned char* p_head,
                                           float* p_scales,
                                           int position) {
  constexpr float kLargest = 448.0f;
  float largest = 0.0f;
  bool finite = true;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    largest = fmaxf(largest, fabsf(b[j]));
    finite = finite && isfinite(b[j]);
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
  }
  finite = __all_sync(kAllLanes, finite);
  const float scale = finite ? largest / kLargest : __int_as_float(0x7fffffff);
  uint32_t words[2] = {0, 0};
  if (finite && scale > 0.0f) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const uint32_t byte =
          __nv_cvt_float_to_fp8(__fdiv_rn(b[j], scale), __NV_SATFINITE, __NV_E4M3);
      words[j / 4] |= byte << (8 * (j % 4));
    }
  }
  const int i_lane = threadIdx.x % kWarp;
  auto* p_row = p_head + static_cast<int64_t>(position) * kHeadDim;
  reinterpret_cast<uint2*>(p_row)[i_lane] = make_uint2(words[0], words[1]);
  if (i_lane == 0) {
    p_scales[position] = scale;
  }
}

template <typename T, typename Cache>
__global__ void __launch_bounds__(kAppendWarps* kWarp)
    attention_decode_append_kernel(__grid_constant__ const KernelArgs args) {
  using Compute = typename Cache::Compute;
  const int i_lane = threadIdx.x % kWarp;
  const int num_vectors = args.num_heads + 2 * args.num_kv_heads;
  const int i_task = blockIdx.x * kAppendWarps + threadIdx.x / kWarp;
  const int i_row = i_task / num_vectors;
  const int i_vector = i_task % num_vectors;
  const bool is_query = i_vector < args.num_heads;
  const bool is_value = i_vector >= args.num_heads + args.num_kv_heads;

  float b_weight[kChunk];
  const void* p_norm = is_query ? args.p_q_norm : args.p_k_norm;
  if (args.float_norms) {
    load_chunk<false>(static_cast<const float*>(p_norm), i_lane * kChunk, kHeadDim, b_weight);
  } else {
    load_chunk<false>(static_cast<const T*>(p_norm), i_lane * kChunk, kHeadDim, b_weight);
  }
  float b_inv_freq[kChunk];
  const int half_lanes = args.half_rotary / kChunk;
  const int i_freq = i_lane < 2 * half_lanes ? i_lane % half_lanes * kChunk : args.half_rotary;
  load_chunk<false>(args.p_inv_freq, i_freq, args.half_rotary, b_inv_freq);

  wait_for_previous_kernel();
  // Not earlier: the next kernel reads the cache and the position ahead of its own wait, so all
  // that came before this kernel has to be complete when that one starts.
  allow_next_kernel();
  for (int i = threadIdx.x; blockIdx.x == 0 && i < args.num_kv_heads * args.num_parts;
       i += blockDim.x) {
    args.p_tickets[i] = 0;
  }
  const int position = *args.p_position;
  if (i_row >= args.rows || !is_in_range(position, args)) {
    return;
  }

  float b[kChunk];
  if (is_query) {
    const auto* p_row = static_cast<const T*>(args.p_q_gate) + i_row * args.q_gate_row_stride;
    load_row(p_row + i_vector * 2 * kHeadDim, args.vector, b);
  } else {
    const auto* p_row = is_value ? static_cast<const T*>(args.p_v) + i_row * args.v_row_stride
                                 : static_cast<const T*>(args.p_k) + i_row * args.k_row_stride;
    load_row(p_row + (i_vector - args.num_heads) % args.num_kv_heads * kHeadDim, args.vector, b);
  }
  if (!is_value) {
    norm_row(b, b_weight, args.eps);
    turn_row(b, b_inv_freq, position + i_row, args.half_rotary);
  }
  if (is_query) {
    auto* p_queries = static_cast<Compute*>(args.p_queries);
    store_chunk<true>(p_queries + (i_row * args.num_heads + i_vector) * kHeadDim, i_lane * kChunk,
                      kHeadDim, b);
    return;
  }
  const int64_t i_kv = (i_vector - args.num_heads) % args.num_kv_heads;
  constexpr int kItemBytes = Cache::kRowBytes / kHeadDim;
  append_row(
      Cache{}, b,
      (is_value ? args.p_v_cache : args.p_k_cache) + i_kv * args.cache_head_stride * kItemBytes,
      (is_value ? args.p_v_scale : args.p_k_scale) + i_kv * args.scale_head_stride,
      position + i_row);
}

// The part's queries as A operands: [kTilesM][kQuerySteps][lane]; zeros where there is none.
template <typename Cache, int kTilesM>
__device__ __forceinline__ void load_queries(
    const KernelArgs& args, uint4* p_to, int i_kv, int i_first, int num_queries) {
  const auto* p_queries = static_cast<const typename Cache::Compute*>(args.p_queries);
  const int group = args.num_heads / args.num_kv_heads;
  for (int i = threadIdx.x; i < kTilesM * kQuerySteps * kWarp; i += kTileThreads) {
    const int i_lane = i % kWarp;
    const int i_step = i / kWarp % kQuerySteps;
    uint32_t a[4] = {0, 0, 0, 0};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int q = i_first + i / (kWarp * kQuerySteps) * 16 + i_lane / 4 + 8 * h;
      if (q < num_queries) {
        const int i_vector = q / group * args.num_heads + i_kv * group + q % group;
        Cache::query_pairs(p_queries + i_vector * kHeadDim, i_step, i_lane % 4, a[h], a[2 + h]);
      }
    }
    p_to[i] = make_uint4(a[0], a[1], a[2], a[3]);
  }
}

template <typename Cache, int kTilesM>
__device__ __forceinline__ void store_leaf(const KernelArgs& args,
                                           const AttentionState<kTilesM>& state,
                                           const Leaf& leaf,
                                           int position,
                                           int i_kv,
                                           int i_first,
                                           int num_queries) {
  const int group = args.num_heads / args.num_kv_heads;
  const int i_warp = threadIdx.x / kWarp;
#pragma unroll
  for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
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

template <typename Cache, int kTilesM>
constexpr int leaves_shared_bytes() {
  return 2 * TileStage<Cache>::kBytes + kTilesM * kQuerySteps * kWarp * kChunkBytes;
}

template <typename Cache, int kTilesM>
__global__ void __launch_bounds__(kTileThreads, 2)
    attention_decode_leaves_kernel(__grid_constant__ const KernelArgs args) {
  constexpr int kItemBytes = Cache::kRowBytes / kHeadDim;
  constexpr int kTile = Cache::kTile;
  extern __shared__ __align__(128) unsigned char s_memory[];
  __shared__ ValueMarks s_marks;
  __shared__ int s_ticket;
  auto* s_queries = reinterpret_cast<uint4*>(s_memory + 2 * TileStage<Cache>::kBytes);

  const int num_groups = args.num_kv_heads * args.num_parts;
  const int i_group = blockIdx.x % num_groups;
  const int i_kv = i_group % args.num_kv_heads;
  const int i_first = i_group / args.num_kv_heads * kPartQueries;
  const int group = args.num_heads / args.num_kv_heads;
  const int num_queries = group * args.rows;
  const HeadCache head = {args.p_k_cache + i_kv * args.cache_head_stride * kItemBytes,
                          args.p_v_cache + i_kv * args.cache_head_stride * kItemBytes,
                          args.p_k_scale + i_kv * args.scale_head_stride,
                          args.p_v_scale + i_kv * args.scale_head_stride};
  const uint32_t stages = shared_address(s_memory);

  allow_next_kernel();
  // The append kernel let this one start when all before it was complete, and writes nothing that
  // is read here ahead of the wait: the position, and the tiles in front of it.
  const int position = *args.p_position;
  const bool in_range = is_in_range(position, args);
  const int last = in_range ? position + args.rows - 1 : 0;
  const int count = in_range ? num_leaves(last + 1) : 0;
  // The first leaf of a block is fixed, the others are drawn.
  const int first_ticket = gridDim.x / num_groups;
  int i_ticket = blockIdx.x / num_groups;
  const bool has_work = i_ticket < count;
  Leaf leaf = leaf_of_index(has_work ? count - 1 - i_ticket : 0);
  const bool early = has_work && leaf.start + kTile <= position;
  if (early) {
    begin_load_tile<Cache>(stages, head, leaf.start, last);
  }
  if (threadIdx.x < kMaxRows * kMarkWords) {
    (&s_marks[0][0])[threadIdx.x] = 0;
  }
  wait_for_previous_kernel();
  if (!has_work) {
    return;
  }
  if (!early) {
    begin_load_tile<Cache>(stages, head, leaf.start, last);
  }
  load_queries<Cache, kTilesM>(args, s_queries, i_kv, i_first, num_queries);

  int sees[kTilesM][2];  // the last position that the query sees
#pragma unroll
  for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int q = i_first + 16 * m + static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * h;
      sees[m][h] = position + q / group;
    }
  }

  AttentionState<kTilesM> state;
  reset(state);
  int first = leaf.start;  // of the tile
  int i_stage = 0;
  while (true) {
    const bool ends_leaf = first + kTile >= min(leaf.start + leaf.size, last + 1);
    const uint32_t next_stage = stages + (i_stage ^ 1) * TileStage<Cache>::kBytes;
    unsigned char* p_stage = s_memory + i_stage * TileStage<Cache>::kBytes;

    async_copy_wait();
    __syncthreads();  // the tile is here, and nobody reads the other stage any more
    if (!ends_leaf) {
      begin_load_tile<Cache>(next_stage, head, first + kTile, last);
    }
    if (first == leaf.start && threadIdx.x == 0) {
      s_ticket = first_ticket + atomicAdd(args.p_tickets + i_group, 1);
    }
    tile_scores<Cache, kTilesM>(p_stage, s_queries, args.score_unit);
    const bool has_unseen = !Cache::kScaled && first + kTile > position + 1 && args.rows > 1;
    if constexpr (!Cache::kScaled) {
      if (has_unseen) {
        mark_unseen_values<Cache>(p_stage, s_marks, first, position, last);
      }
    }
    __syncthreads();  // the scores are here

    Leaf next_leaf = leaf;
    if (ends_leaf) {
      i_ticket = s_ticket;
      if (i_ticket < count) {
        next_leaf = leaf_of_index(count - 1 - i_ticket);
        begin_load_tile<Cache>(next_stage, head, next_leaf.start, last);
      }
    }
    add_tile<Cache, kTilesM>(state, p_stage, first, sees);
    if constexpr (!Cache::kScaled) {
      if (has_unseen) {
        spoil_marked_dims(state, s_marks, position, sees);
      }
    }
    i_stage ^= 1;
    first += kTile;
    if (ends_leaf) {
      store_leaf<Cache, kTilesM>(args, state, leaf, position, i_kv, i_first, num_queries);
      if (i_ticket >= count) {
        return;
      }
      reset(state);
      leaf = next_leaf;
      first = leaf.start;
    }
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
  wait_for_previous_kernel();
  const int position = *args.p_position;
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
#pragma unroll 4
  for (int i = i_way; i < count; i += kMergeWays) {
    const float2 max_sum = p_max_sum[i];
    const float4 partial = p_partial[static_cast<int64_t>(i) * (kHeadDim / 4)];
    const float weight = exp2_fast(max_sum.x - largest);
    sum = fmaf(max_sum.y, weight, sum);
    out.x = fmaf(partial.x, weight, out.x);
    out.y = fmaf(partial.y, weight, out.y);
    out.z = fmaf(partial.z, weight, out.z);
    out.w = fmaf(partial.w, weight, out.w);
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
  const int i_own = blockIdx.y * kMergeDims + threadIdx.x;
  const T* p_gate = static_cast<const T*>(args.p_q_gate) + i_row * args.q_gate_row_stride +
                    i_head * 2 * kHeadDim + kHeadDim;
  const float gate = 1.0f / (1.0f + expf(-to_float(p_gate[i_own])));
  static_cast<T*>(args.p_out)[i_row * args.out_row_stride + i_head * kHeadDim + i_own] =
      from_float<T>(total / total_sum * gate);
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Where the parts of the workspace begin.
struct Workspace {
  std::size_t queries, max_sum, partial, end;

  Workspace(std::int64_t rows, std::int64_t num_heads, std::int64_t max_positions) {
    const std::size_t vectors = rows * num_heads;
    const std::size_t leaves = num_leaves(static_cast<int>(max_positions));
    queries = aligned(kMaxGroups * sizeof(int));
    max_sum = queries + aligned(vectors * kHeadDim * 2);
    partial = max_sum + aligned(vectors * leaves * sizeof(float2));
    end = partial + vectors * leaves * kHeadDim * sizeof(float);
  }
};

template <typename Cache, int kTilesM>
Status launch_leaves(const KernelArgs& args, void* stream) {
  const auto kernel = attention_decode_leaves_kernel<Cache, kTilesM>;
  LaunchOptions options;
  options.shared_bytes = leaves_shared_bytes<Cache, kTilesM>();
  options.overlap_previous = true;
  int device = 0, num_sms = 0, blocks_per_sm = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(options.shared_bytes));
  }
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, kernel, kTileThreads,
                                                          options.shared_bytes);
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // reported here, so it must not surface again
    return error;
  }
  // As many blocks as run at once, the same number for each kv head, no more than have a leaf.
  const int num_groups = args.num_kv_heads * args.num_parts;
  const int wanted = num_sms * blocks_per_sm / num_groups;
  const int blocks = wanted < 1 ? 1 : wanted > args.max_leaves ? args.max_leaves : wanted;
  return launch_with(options, kernel, dim3(blocks * num_groups), dim3(kTileThreads), stream, args);
}

template <typename T, typename Cache>
Status run(const KernelArgs& args, void* stream) {
  LaunchOptions overlap;
  overlap.overlap_previous = true;
  const int num_vectors = args.rows * (args.num_heads + 2 * args.num_kv_heads);
  Status status = launch_with(overlap, attention_decode_append_kernel<T, Cache>,
                              dim3((num_vectors + kAppendWarps - 1) / kAppendWarps),
                              dim3(kAppendWarps * kWarp), stream, args);
  if (status != kOk) {
    return status;
  }
  const int queries = args.rows * args.num_heads / args.num_kv_heads;
  status = queries <= 16   ? launch_leaves<Cache, 1>(args, stream)
           : queries <= 32 ? launch_leaves<Cache, 2>(args, stream)
                           : launch_leaves<Cache, 3>(args, stream);
  if (status != kOk) {
    return status;
  }
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
                           reinterpret_cast<int*>(p_workspace),
                           p_workspace + parts.queries,
                           reinterpret_cast<float2*>(p_workspace + parts.max_sum),
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
                           static_cast<int>(p.rotary_dim / 2),
                           p.eps,
                           static_cast<float>(p.scale * kLog2E),
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
