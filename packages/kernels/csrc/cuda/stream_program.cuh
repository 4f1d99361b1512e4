// What a weight stream does, as its blocks read it: the ops of weight_stream.h with the shares of
// every warp worked out, as a table in device memory.
//
//   tasks     one for each op. A warp copies the next one to shared memory while it is at an op:
//             warps are at different ops, so each has copies of its own.
//   early     what each op reads besides weights and results, for one warp of a block
//   weights   one for each product, for the rings, which are products ahead
//
//   block   16 warps: two teams of 8. A team is to a product what a block is to w4_matvec, so that
//           sums have the same order; both teams share the normed rows.
#pragma once

#include <cstdint>

#include "../weight_stream.h"
#include "attention_args.cuh"
#include "barrier.cuh"
#include "matvec.cuh"
#include "special_registers.cuh"

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

struct EmbeddingTask {
  const std::int32_t* p_ids;
  const __half* p_table;
  float* p_out;
  std::int64_t table_row_stride;
  std::int64_t out_row_stride;
  int n;
  int d;
};

struct AttentionTask {
  AttentionArgs args;  // rows and num_parts are the pass's: set where the record is used
  int* p_arrived;      // counts leaves, from -1 on
  DType cache_dtype;
};

// Memory that an op will read and no op of the launch writes, so that the L2 can have it early.
struct Early {
  const void* p;
  int num_bytes;  // a multiple of 16
  int row_bytes;  // likewise: more for each row of the pass beyond the first
  int num_rows;   // that there are at most
};

constexpr int kMostEarly = 8;  // of an op
constexpr int kOpsAhead = 5;   // of the op that is asked for

struct EarlyReads {
  Early early[kMostEarly];
};

// Records are copied in units of 16 bytes.
struct alignas(16) StreamTask {
  StreamKind kind;
  union {
    ProductTask product;
    GatesTask gates;
    NormTask norm;
    DeltaTask delta;
    EmbeddingTask embedding;
    AttentionTask attention;
  };
};

// What the rings want of a product.
struct alignas(16) WeightsTask {
  const unsigned char* p_weight;
  Shares shares;
};
static_assert(sizeof(StreamTask) + sizeof(EarlyReads) + sizeof(WeightsTask) <= kStreamOpBytes);

struct StreamProgram {
  const StreamTask* p_tasks;     // [num_ops]
  const EarlyReads* p_early;     // [num_ops]
  const WeightsTask* p_weights;  // [num_products]
  int num_ops;
  int num_products;
  int num_rows;
  int num_slots;         // of a warp's ring
  int attention_groups;  // of a block: of four warps each
  int normed_stride;     // of the normed rows, in elements
  // Offsets in shared memory, in bytes. The normed rows begin at 0.
  int squares;
  int parts[kTeams];
  int ring;
  int barriers;
  int cursors;
  int tasks;
  float2* p_sent;
  std::int64_t* p_clock;
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

// Some lanes of a warp begin to copy a record of the table to shared memory.
template <typename Record>
__device__ __forceinline__ void begin_copy_record(Record* p_to, const Record* p_from, int i_lane) {
  constexpr int kPieces = sizeof(Record) / 16;
  static_assert(sizeof(Record) % 16 == 0 && kPieces <= kWarp);
  if (i_lane < kPieces) {
    async_copy_16(shared_address(p_to) + i_lane * 16,
                  reinterpret_cast<const unsigned char*>(p_from) + i_lane * 16);
  }
}

// Some lanes of a warp ask for this block's share of what an op will read. Ordinary loads would
// queue behind the weights on their way, for as long as it takes to fill all rings.
__device__ __forceinline__ void ask_early(const EarlyReads& reads, int num_rows, int i_lane) {
  if (i_lane >= kMostEarly || reads.early[i_lane].num_bytes == 0) {
    return;
  }
  const Early early = reads.early[i_lane];
  const int num_bytes = early.num_bytes + (min(num_rows, early.num_rows) - 1) * early.row_bytes;
  const int share = (num_bytes / 16 + num_blocks() - 1) / num_blocks() * 16;
  const int begin = share * block_index();
  if (begin < num_bytes) {
    prefetch_bytes(static_cast<const char*>(early.p) + begin, min(share, num_bytes - begin));
  }
}

}  // namespace bytebound
