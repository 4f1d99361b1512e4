// What a weight stream does, as its blocks read it: the ops of weight_stream.h with the shares of
// every warp worked out.
//
//   block   16 warps: two teams of 8. A team is to a product what a block is to w4_matvec, so that
//           sums have the same order; both teams share the normed rows.
#pragma once

#include <cstdint>

#include "../weight_stream.h"
#include "barrier.cuh"
#include "matvec.cuh"

namespace bytebound {

constexpr int kTeams = 2;
constexpr int kTeamThreads = kMatvecThreads;
constexpr int kStreamThreads = kTeams * kTeamThreads;
constexpr int kStreamWarps = kStreamThreads / kWarp;

struct ProductTask {
  const unsigned char* p_weight;
  const __half* p_x;  // null: the normed rows
  std::int64_t x_row_stride;
  int num_groups;
  Shares shares;
  unsigned parity;  // of the number of products before
  bool bfloat16_scales;
  MatvecOutput output;
};

struct GatesTask {
  const __half* p_weight;
  __half* p_out;
  std::int64_t weight_row_stride;
  std::int64_t out_row_stride;
  int n;
  int d;
  int num_threads;  // as of NormTask
};

struct NormTask {
  const float* p_x;
  const float* p_weight;
  __half* p_out;
  std::int64_t x_row_stride;
  std::int64_t out_row_stride;
  int d;
  int num_threads;  // of rms_norm's block: part of the order of summation
  float eps;
};

struct DeltaRows {
  const __half* p_qkv;
  const __half* p_a;
  const __half* p_b;
  std::int64_t qkv_row_stride;
  std::int64_t a_row_stride;
  std::int64_t b_row_stride;
};

struct DeltaTask {
  DeltaRows current;
  const __half* p_pending_qkv;
  const float* p_pending_updates;
  const __half* p_z;
  __half* p_out;
  float* p_updates;
  std::int64_t z_row_stride;
  std::int64_t out_row_stride;
  std::int64_t updates_row_stride;
  const std::int32_t* p_num_accepted;
  const __half* p_conv_weight;
  const float* p_a_log;
  const float* p_dt_bias;
  const float* p_norm_weight;
  const __half* p_conv_window;
  float* p_state;
  int updates_width;
  int pending_rows;
  int h;
  int hv;
  int ratio;
  float eps;
};

// Memory that an op will read and no op of the launch writes, so that the L2 can have it early.
struct Early {
  const void* p;
  int num_bytes;  // a multiple of 16
};

constexpr int kMostEarly = 8;  // of an op
constexpr int kOpsAhead = 5;   // of the op that is asked for

struct StreamTask {
  StreamKind kind;
  Early early[kMostEarly];
  union {
    ProductTask product;
    GatesTask gates;
    NormTask norm;
    DeltaTask delta;
  };
};

struct StreamProgram {
  int num_ops;
  int num_rows;
  int num_slots;      // of a warp's ring
  int normed_stride;  // of the normed rows, in elements
  // Offsets in shared memory, in bytes; the ring begins at 0.
  int normed;
  int squares;
  int parts[kTeams];
  int barriers;
  float2* p_sent;
  std::int64_t* p_clock;
  StreamTask ops[kStreamMaxOps];
};

// What the threads of a team have in common.
struct Team {
  int index;    // within the block
  int i_block;  // within the grid of teams
  int i_warp;   // of this thread, within the team
  int i_thread;
  int i_lane;
  std::uint64_t* p_parts_ready;  // all warps have left their parts of a product
  std::uint64_t* p_parts_free;   // all warps are done with the parts of a product
};

// Some lanes of a warp ask for this block's share of what an op will read. Ordinary loads would
// queue behind the weights on their way, for as long as it takes to fill all rings.
__device__ __forceinline__ void ask_early(const StreamTask& op, int i_lane) {
  if (i_lane >= kMostEarly || op.early[i_lane].num_bytes == 0) {
    return;
  }
  const Early early = op.early[i_lane];
  const int share = (early.num_bytes / 16 + gridDim.x - 1) / gridDim.x * 16;
  const int begin = share * blockIdx.x;
  if (begin < early.num_bytes) {
    prefetch_bytes(static_cast<const char*>(early.p) + begin, min(share, early.num_bytes - begin));
  }
}

__device__ __forceinline__ void sync_team(const Team& team) {
  team.index == 0 ? sync_threads_of<1, kTeamThreads>() : sync_threads_of<2, kTeamThreads>();
}

}  // namespace bytebound
