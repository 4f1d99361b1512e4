// Attention within a weight stream, with the bits of attention_decode: the same leaves, each by
// four warps (attention_leaves.cuh), and the same merge, 64 dims of a query by a team.
//
//   rows    handed over by the products before; each four warps make those that they need
//   leaves  of a kv head and a part of its queries, dealt to the groups of four warps of all blocks
//   merge   when all leaves have arrived: a counter, since a leaf's result is too large to be
//   marked out     handed over
//
// A group of four warps adds its leaves to the counter with release, a team reads it with acquire.
// Nobody waits for a merge before its own leaves are done, so the waits end whatever the order.
//
// Its memory lies over the normed rows and the parts of the products, so a block's warps begin and
// end it together. What one op leaves in the workspace the next one overwrites: its rows have come
// out of all of this one's output, so all of that has been read.
#pragma once

#include "attention_leaves.cuh"
#include "attention_merge.cuh"
#include "dynamic_shared.cuh"
#include "handed.cuh"
#include "special_registers.cuh"
#include "stream_program.cuh"

namespace bytebound {

constexpr int kAttentionStages = 2;
constexpr int kMostAttentionGroups = kTeams;  // the first warps of each team
constexpr int kStreamMergeAhead = 8;

// Queries of four warps: as many as the registers of a stream's thread hold.
__host__ __device__ constexpr int stream_queries(int num_rows) {
  return num_rows == 1 ? 8 : 16;
}
// With 16 queries a second load ahead would leave no register to the kernel that calls.
__host__ __device__ constexpr int stream_keys_ahead(int queries) {
  return queries <= 8 ? 2 : 1;
}

// Shared memory of four warps, with any cache and any number of rows.
struct alignas(128) AttentionShared {
  unsigned char stages[kAttentionStages * TileStage<Float8Cache>::kBytes];
  uint4 queries[query_tiles(stream_queries(kMaxRows)) * kQuerySteps * kWarp];
  ValueMarks marks;
  LeafShare share;
  int position;
  int num_groups;  // of the grid
  int i_next;      // share and pair
  QueryPart part;  // whose share it is: here, since registers are scarce
};
static_assert(TileStage<Float8Cache>::kBytes >= TileStage<WideCache<__half>>::kBytes);

// What attention has of a block's shared memory, from its beginning on. The merge has the place of
// the stages.
struct alignas(128) AttentionMemory {
  AttentionTask task;
  union {
    AttentionShared groups[kMostAttentionGroups];
    MergeShared<kStreamMergeAhead> merges[kTeams];
  };

  static constexpr int bytes(int num_groups) {
    constexpr int kFirst = sizeof(AttentionMemory) - kMostAttentionGroups * sizeof(AttentionShared);
    return num_groups > 0 ? kFirst + num_groups * static_cast<int>(sizeof(AttentionShared)) : 0;
  }
};
static_assert(sizeof(MergeShared<kStreamMergeAhead>[kTeams]) <= sizeof(AttentionShared));

// The rows of a part into their slots of the scratch, as begin_load_rows leaves them.
__device__ __forceinline__ void receive_rows(const RowTasks& tasks, const Scratch& scratch) {
  constexpr int kAtOnce = 4;  // of a warp: each takes a trip
  const int i_lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int i_first = tile_warp(); i_first < tasks.num; i_first += kAtOnce * kTileWarps) {
    const uint16_t* p_from[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      p_from[u] = tasks.source(min(i_first + u * kTileWarps, tasks.num - 1)) + i_lane * kChunk;
    }
    uint4 b[kAtOnce];
    bool any_absent;
    do {
      any_absent = false;
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        b[u] = load_relaxed_16(p_from[u]);
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        any_absent |= has_absent_half(b[u]);
      }
    } while (any_absent);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int i = i_first + u * kTileWarps;
      if (i < tasks.num) {
        reinterpret_cast<uint4*>(scratch.row(i))[i_lane] = b[u];
      }
    }
  }
  __syncwarp();  // a warp makes the rows that it has received
}

__device__ __forceinline__ QueryPart part_of(const AttentionArgs& args, int i_pair, int queries) {
  return {i_pair % args.num_kv_heads, i_pair / args.num_kv_heads * queries,
          args.num_heads / args.num_kv_heads * args.rows};
}

// One share of the leaves of a kv head, for a part of its queries. Registers are scarce, so that
// what is needed before and behind the making of rows is worked out twice.
template <typename Cache, int kQueries, typename Sync>
__device__ __forceinline__ void attend_share(const AttentionTask& task,
                                             AttentionShared& shared,
                                             Sync sync) {
  const AttentionArgs& args = task.args;
  const LeafShare& share = shared.share;
  const QueryPart& part = shared.part;
  if (tile_thread() < kMaxRows * kMarkWords) {
    (&shared.marks[0][0])[tile_thread()] = 0;
  }
  for (int i = tile_thread(); i < query_tiles(kQueries) * kQuerySteps * kWarp; i += kTileThreads) {
    shared.queries[i] = make_uint4(0, 0, 0, 0);
  }
  // In the last stage, which no tile is loaded into before the rows are made.
  const Scratch scratch(shared.stages + (kAttentionStages - 1) * TileStage<Cache>::kBytes, args);
  make_turns(args, scratch, shared.position);
  sync();  // the share is there
  if (share.num_leaves == 0) {
    return;
  }
  {
    const int position = shared.position;
    const int last = position + args.rows - 1;
    TileWalk<Cache::kTile> first = {};
    first.enter(share, last);
    begin_load_tile<Cache>(shared_address(shared.stages), head_of<Cache>(args, part.i_kv),
                           first.first, position - 1);
    async_copy_commit();
    // The new rows lie in the last one or two leaves, each the last of its share. Whoever has one
    // appends all rows, as in attention_decode: nobody reads a new row that it has not made itself.
    const Leaf newest = leaf_of_index(share.leaf(share.num_leaves - 1));
    const bool appends = newest.start + newest.size > position;
    RowTasks tasks = {};
    tasks.set(args, appends, part.i_kv, part.i_first, min(part.end - part.i_first, kQueries));
    receive_rows(tasks, scratch);
    float b_q_norm[kChunk], b_k_norm[kChunk];
    load_norm(args, args.p_q_norm, b_q_norm);
    load_norm(args, args.p_k_norm, b_k_norm);
    make_rows<Cache, kQueries>(args, tasks, scratch, b_q_norm, b_k_norm, shared.queries, part.i_kv,
                               position, true);
    if (appends) {
      place_rows_ahead<Cache>(args, scratch, shared.stages, share, first, position, last, sync);
    }
    sync();
  }

  const int position = shared.position;
  const int last = position + args.rows - 1;
  SeenPositions<kQueries> sees;
#pragma unroll
  for (int m = 0; m < query_tiles(kQueries); ++m) {
#pragma unroll
    for (int h = 0; h < query_halves(kQueries); ++h) {
      const int q = part.i_first + 16 * m + static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * h;
      sees[m][h] = position + q / (args.num_heads / args.num_kv_heads);
    }
  }
  TileWalk<Cache::kTile> walk = {};
  walk.enter(share, last);
  TileWalk<Cache::kTile> loads = walk;
  loads.advance(share, last);
  attend<Cache, kQueries, stream_keys_ahead(kQueries)>(args, shared.stages, shared.queries,
                                                       shared.marks, share, walk, loads, sees,
                                                       position, part, sync);
  sync();  // all of the leaves is stored
  if (tile_thread() == 0) {
    add_release(task.p_arrived, share.num_leaves);
  }
}

// Apart from the kernel, and so but once for all of them: inlined, its addresses would take the
// registers of the other ops. For the same reason it has no arguments.
template <typename Cache, int kQueries>
__device__ __noinline__ void attention_leaves() {
  BYTEBOUND_DYNAMIC_SHARED(__align__(128) unsigned char, shared_bytes);
  const auto sync = [] {
    threadIdx.x < kTeamThreads ? sync_threads_of<3, kTileThreads>()
                               : sync_threads_of<4, kTileThreads>();
  };
#pragma unroll 1
  while (true) {
    // Of a number that the compiler knows it would keep addresses through the loop, in registers.
    int i_team = thread_index() / kTeamThreads;
    auto& memory = *reinterpret_cast<AttentionMemory*>(shared_bytes);
    AttentionShared& shared = memory.groups[i_team];
    const AttentionTask& task = memory.task;
    sync();  // what the group is, or the next share, is there
    const int num_pairs = task.args.num_kv_heads * task.args.num_parts;
    const int num_shares = max(shared.num_groups / num_pairs, 1);
    const int i = shared.i_next;
    if (i >= num_pairs * num_shares) {
      return;
    }
    sync();
    if (tile_warp() == 0) {
      shared.share.set(shared.position + task.args.rows, i / num_pairs, num_shares);
      if (tile_thread() == 0) {
        shared.part = part_of(task.args, i % num_pairs, kQueries);
        shared.i_next = i + shared.num_groups;
      }
    }
    attend_share<Cache, kQueries>(task, shared, sync);
  }
}

__device__ __forceinline__ void sync_merge() {
  threadIdx.x < kTeamThreads ? sync_threads_of<1, kTeamThreads>()
                             : sync_threads_of<2, kTeamThreads>();
}

// What the leaves have yielded, for all dims of all queries: the teams of all blocks take 64 at a
// time.
__device__ __noinline__ void attention_merge() {
  BYTEBOUND_DYNAMIC_SHARED(__align__(128) unsigned char, shared_bytes);
  constexpr int kParts = kHeadDim / kMergeDims;
  static_assert(kTeamThreads == kMergeThreads);
  auto& memory = *reinterpret_cast<AttentionMemory*>(shared_bytes);
  const AttentionTask& task = memory.task;
  const AttentionArgs& args = task.args;
  const int i_thread = thread_index() % kTeamThreads;
  const int i_team = thread_index() / kTeamThreads;
  MergeShared<kStreamMergeAhead>& shared = memory.merges[i_team];
  const int position = *args.p_position;
  const bool in_range = is_in_range(position, args);
  const int num_units = args.rows * args.num_heads * kParts;
  int unit = i_team * num_blocks() + block_index();
  if (in_range && unit < num_units) {
    if (i_thread == 0) {
      const int num_pairs = args.num_kv_heads * args.num_parts;
      const int all = num_leaves(position + args.rows) * num_pairs - 1;
      while (load_acquire(task.p_arrived) != all) {
      }
    }
    sync_merge();
  }
#pragma unroll 1
  for (; unit < num_units; unit += kTeams * num_blocks()) {
    const int i_vector = unit / kParts;  // row and head
    const int i_row = i_vector / args.num_heads;
    const int i_head = i_vector % args.num_heads;
    float mean = __int_as_float(0x7fffffff);
    if (in_range) {
      mean = merge_leaves(args, shared, i_thread, i_vector, unit % kParts,
                          num_leaves(position + i_row + 1), [] { sync_merge(); });
    }
    if (i_thread < kMergeDims) {
      const int i_dim = unit % kParts * kMergeDims + i_thread;
      const __half gate =
          receive_half(static_cast<const __half*>(args.p_q_gate) + i_row * args.q_gate_row_stride +
                       (2 * i_head + 1) * kHeadDim + i_dim);
      store_relaxed(static_cast<__half*>(args.p_out) + i_row * args.out_row_stride +
                        i_head * kHeadDim + i_dim,
                    from_float<__half>(gated(mean, to_float(gate))));
    }
  }
}

// All threads of the block call it.
template <int kNumRows>
__device__ __forceinline__ void stream_attention(const StreamProgram& program,
                                                 const AttentionTask& task,
                                                 AttentionMemory& memory) {
  constexpr int kQueries = stream_queries(kNumRows);
  __syncthreads();  // nobody needs the normed rows or the parts of a product any more
  if (thread_index() < kWarp) {
    constexpr int kWords = sizeof(AttentionTask) / 4;
    for (int i = thread_index(); i < kWords; i += kWarp) {
      reinterpret_cast<uint32_t*>(&memory.task)[i] = reinterpret_cast<const uint32_t*>(&task)[i];
    }
    __syncwarp();
    if (thread_index() == 0) {
      AttentionArgs& args = memory.task.args;
      args.rows = program.num_rows;
      args.num_parts = (args.rows * (args.num_heads / args.num_kv_heads) + kQueries - 1) / kQueries;
      const int position = *args.p_position;
      for (int i = 0; i < program.attention_groups; ++i) {
        AttentionShared& shared = memory.groups[i];
        shared.position = position;
        shared.i_next = i * num_blocks() + block_index();
        shared.num_groups = program.attention_groups * num_blocks();
      }
    }
  }
  __syncthreads();
  if (thread_index() / kTeamThreads < program.attention_groups &&
      thread_index() % kTeamThreads < kTileThreads &&
      is_in_range(memory.groups[0].position, memory.task.args)) {
    switch (memory.task.cache_dtype) {
      case DType::kFloat16:
        attention_leaves<WideCache<__half>, kQueries>();
        break;
      case DType::kBFloat16:
        attention_leaves<WideCache<__nv_bfloat16>, kQueries>();
        break;
      default:
        attention_leaves<Float8Cache, kQueries>();
        break;
    }
  }
  __syncthreads();  // the merge has the place of the stages
  attention_merge();
  __syncthreads();
}

}  // namespace bytebound
