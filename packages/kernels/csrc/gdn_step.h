// One Gated DeltaNet layer between its projections, for a few rows. Pointers, sizes, strides and a
// stream: no framework.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "status.h"

namespace bytebound {

constexpr std::int64_t kGdnHeadDim = 128;  // K and V
constexpr std::int64_t kGdnMaxRows = 8;    // of a pass, and pending ones
constexpr std::int64_t kGdnMaxRatio = 16;  // value heads of one key head

// Rows of the two gates and of the projection that is convolved. C = (2 H + HV) * 128.
struct GdnRows {
  const void* qkv;              // [R, C] of dtype, before the convolution; pairs, so 4-byte aligned
  const void* a;                // [R, HV] of dtype
  const void* b;                // [R, HV] of dtype
  std::int64_t rows;            // R, 0 to kGdnMaxRows
  std::int64_t qkv_row_stride;  // in elements; even
  std::int64_t a_row_stride;    // in elements
  std::int64_t b_row_stride;    // in elements
};

// What a pass leaves of its rows for the next one to replay: no convolution, no norm and no sum is
// done twice. P rows each, adjacent.
struct GdnPending {
  void* qkv;          // [P, C] of dtype, before the convolution, 4-byte aligned
  float* updates;     // [P, gdn_updates_width()], 16-byte aligned
  std::int64_t rows;  // that are read at most, 0 to kGdnMaxRows; P is no less, nor less than R
};

// A row of updates: k [H, K] behind the convolution, not normalised; delta [HV, V], which is d
// times what normalises k; decay [HV]. Whole units of 16 bytes.
constexpr std::int64_t gdn_updates_width(std::int64_t h, std::int64_t hv) {
  return (h + hv) * kGdnHeadDim + (hv + 3) / 4 * 4;
}

struct GdnStepParams {
  GdnRows current;                   // the rows of this pass
  const void* z;                     // [R, HV * V] of dtype, 4-byte aligned
  void* out;                         // [R, HV * V] of dtype, 4-byte aligned
  std::int64_t z_row_stride;         // in elements; even
  std::int64_t out_row_stride;       // in elements; even
  GdnPending pending;                // of the pass before, then of this one; qkv null: none
  const std::int32_t* num_accepted;  // in device memory: how many pending rows are replayed;
                                     // taken as 0 to pending.rows; null without pending
  const void* conv_weight;           // [C, 4] of dtype, oldest tap first, 16-byte aligned
  const float* a_log;                // [HV]
  const float* dt_bias;              // [HV]
  const float* norm_weight;          // [V]
  void* conv_window;                 // [C, 3] of dtype, oldest input first, 4-byte aligned
  float* state;                      // [HV, K, V], 16-byte aligned
  std::int64_t h;                    // H
  std::int64_t hv;                   // HV, a multiple of H up to kGdnMaxRatio * H
  DType dtype;                       // kFloat16 or kBFloat16
  float eps;                         // of the norm
  bool commit;                       // state and window take in the rows of this pass
  // State, window and pending may be read before the previous kernel of the stream has ended.
  // Promise it only where their last writer had ended before this kernel can start: some kernel
  // between the two calls allow_next_kernel() after its wait_for_previous_kernel(), or is launched
  // without overlap. num_accepted and current rows are read after the wait in any case.
  bool state_settled;
  int device;  // the device that owns the pointers
};

// Per row: m = silu(conv(window, qkv)); q, k, v = split(m), q and k normalised, q scaled by K^-0.5;
// decay = exp(-exp(a_log) softplus(a + dt_bias)); beta = sigmoid(b); and per value head
//
//   S <- decay S;   d = beta (v - S^T k);   S <- S + k d^T;   o = S^T q
//   out = norm_weight * o * rsqrt(mean(o^2) + eps) * silu(z)
//
// Value head i uses key head i / (HV / H). First the accepted pending rows are replayed, S <- decay
// S + k delta^T, and written to state and window; then come the rows of this pass, which are
// written only with `commit`, and otherwise become the pending ones. Without either, state and
// window stay as they are.
//
// Enqueues one kernel on `stream` (a cudaStream_t) and returns: no allocation, no synchronisation,
// legal under stream capture. A row has the same bits, and leaves the same state, in every form and
// beside any number of other rows.
Status gdn_step(const GdnStepParams& params, void* stream);

}  // namespace bytebound
