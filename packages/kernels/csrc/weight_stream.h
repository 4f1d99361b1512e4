// A pass of a model as one kernel that never ends between products: weights arrive while the blocks
// still hand each other the results of the op before.
#pragma once

#include <cstdint>

#include "attention_decode.h"
#include "dtype.h"
#include "gdn_step.h"
#include "matvec.h"
#include "status.h"

namespace bytebound {

constexpr int kStreamMaxOps = 4096;  // of one launch
constexpr int kStreamOpBytes = 512;  // of the table, for each op
constexpr int kStreamMaxRows = kMatvecRows;
constexpr int kStreamSentSlots = 4;  // ops whose blocks may send each other sums at the same time

enum class StreamKind : int {
  kNorm = 0,
  kProduct = 1,
  kGates = 2,
  kReplay = 3,
  kGatedDelta = 4,
  kEmbedding = 5,
  kAttention = 6,
};

// Results that another op of the launch reads are "handed over": every bit of their memory is set
// before the launch, which no result has (NaN is 0x7fff or 0x7fffffff), and the reader waits until
// it is gone. Rows that come from before the launch need no such mark.

// The rows that the products behind it multiply, until the next norm:
// fp16(x * rsqrt(mean(x^2) + eps) * (1 + weight)), in shared memory.
struct StreamNorm {
  const float* x;             // [R, D], handed over, 16-byte aligned
  const float* weight;        // [D], 16-byte aligned
  void* out;                  // [R, D] float16, or null: nobody else wants them
  std::int64_t x_row_stride;  // in elements
  std::int64_t out_row_stride;
  int d;  // a multiple of 128
  float eps;
};

// A small 16-bit matrix times the rows of the last norm, with the bits of rms_norm_project.
struct StreamGates {
  const void* weight;              // [N, D] float16, rows 16-byte aligned
  void* out;                       // [R, N] float16
  std::int64_t weight_row_stride;  // in elements
  std::int64_t out_row_stride;
  int n;
  int d;
};

// As w4_matvec on matvec_blocks() of two for each multiprocessor, with the same bits. All products
// of a launch are symmetric, or all asymmetric.
struct StreamProduct {
  const void* weight;         // packed items
  const void* x;              // [R, K] float16, handed over; null: the rows of the last norm
  void* out;                  // [R, N] float16 or float32
  const float* residual;      // [R, N], complete when the op begins, for kAddResidual
  std::int64_t x_row_stride;  // in elements
  std::int64_t out_row_stride;
  std::int64_t residual_row_stride;
  int n;
  int k;
  DType scale_dtype;
  bool asymmetric;
  bool float_out;
  MatvecEpilogue epilogue;
  float scale;
};

// As gdn_step without commit and with state_settled, with the same bits, in two ops: kReplay takes
// the accepted pending rows into the state, kGatedDelta takes the rows of this pass, which are
// handed over, through it. The first needs nothing of this pass: it may come as early as one likes.
// Conv window and pending rows stay as they are: gdn_keep moves them on.
struct StreamGatedDelta {
  GdnRows current;                  // the rows of this pass, float16
  const void* z;                    // [R, HV * V] float16, 4-byte aligned
  void* out;                        // [R, HV * V] float16, 4-byte aligned
  float* updates;                   // [R, gdn_updates_width()], what the next pass replays
  std::int64_t z_row_stride;        // in elements; even
  std::int64_t out_row_stride;      // in elements; even
  std::int64_t updates_row_stride;  // in elements; a multiple of 4
  const void* pending_qkv;          // [P, C] float16
  const float* pending_updates;     // [P, gdn_updates_width()]
  std::int64_t pending_rows;        // P
  const std::int32_t* num_accepted;
  const void* conv_weight;
  const float* a_log;
  const float* dt_bias;
  const float* norm_weight;
  const void* conv_window;
  float* state;
  std::int64_t h;
  std::int64_t hv;
  float eps;
};

// Rows of an embedding table by id, widened: with the bits of embedding_gather.
struct StreamEmbedding {
  const std::int32_t* ids;        // [R], complete before the launch
  const void* table;              // [N, D] float16, rows 16-byte aligned
  float* out;                     // [R, D], rows 16-byte aligned
  std::int64_t table_row_stride;  // in elements
  std::int64_t out_row_stride;
  int n;
  int d;  // a multiple of 8
};

// As attention_decode, with the same bits. Its rows, which are handed over, are float16 and aligned
// to 16 bytes; decode.rows is not read. The rows of the norm before are gone behind it.
struct StreamAttention {
  AttentionDecodeParams decode;  // workspace: for kStreamMaxRows rows
  std::int32_t* arrived;         // [1], every bit set before the launch: counts leaves
};

struct StreamOp {
  StreamKind kind;
  StreamNorm norm;
  StreamProduct product;
  StreamGates gates;
  StreamGatedDelta delta;  // kReplay and kGatedDelta
  StreamEmbedding embedding;
  StreamAttention attention;
};

// What a launch has to know of a program beside its table.
struct StreamPlan {
  int num_ops = 0;
  int num_products = 0;
  int max_d = 0;           // of the norms
  bool has_delta = false;  // a replay alone needs no shared memory
  bool has_attention = false;
  bool asymmetric = false;
  int device = 0;
};

constexpr std::int64_t weight_stream_table_bytes(int num_ops) {
  return std::int64_t{num_ops} * kStreamOpBytes;
}

// Works out a program for the device that runs it, for any number of rows, and copies the table to
// its place in device memory. Waits for the stream: not for a capture.
Status weight_stream_plan(const StreamOp* ops,
                          int num_ops,  // 1 to kStreamMaxOps
                          int device,
                          void* table,  // in device memory, weight_stream_table_bytes()
                          void* stream,
                          StreamPlan* plan);

struct WeightStreamParams {
  StreamPlan plan;
  const void* table;    // of weight_stream_plan()
  int rows;             // R, 1 to 8
  void* workspace;      // weight_stream_workspace_bytes(), every bit set before the first launch
  std::int64_t* clock;  // null, or [num_ops][4][blocks]: nanoseconds at which a block's first warp
                        // began an op, had its input (if it has items), was done with its items,
                        // had handed over
};

constexpr std::int64_t weight_stream_workspace_bytes(int num_sms) {
  return kStreamSentSlots * matvec_workspace_bytes(2 * num_sms);
}

// Runs the ops in order, on one block for each multiprocessor. Enqueues one kernel and returns: no
// allocation, no synchronisation, legal under stream capture. Needs sm_90 or later, and the whole
// device: a block waits for the others.
Status weight_stream(const WeightStreamParams& params, void* stream);

// How many items of weights each warp has under way with that many rows; 0: the device has no room
// for them, or cannot run it.
int weight_stream_slots(const StreamPlan& plan, int rows);

}  // namespace bytebound
