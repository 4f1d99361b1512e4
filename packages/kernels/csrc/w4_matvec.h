// Four-bit matrix [N, K] times up to 16 activation rows.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "matvec.h"
#include "status.h"

namespace bytebound {

struct W4MatvecParams {
  const void* weight;         // packed items (cuda/w4.cuh), 16-byte aligned
  const void* x;              // [R, K] of x_dtype, rows 16-byte aligned
  void* out;                  // [R, N], of x_dtype or float32
  const void* residual;       // [R, N] of out's type, for kAddResidual; may be out itself
  void* workspace;            // matvec_workspace_bytes()
  std::int64_t x_row_stride;  // in elements
  std::int64_t out_row_stride;
  std::int64_t residual_row_stride;
  std::int64_t rows;  // R, 1 to 16
  std::int64_t n;     // output features: of gate and up each one half, for kSwiGlu
  std::int64_t k;     // a multiple of 128
  int num_blocks;     // among which items are shared; part of the order of summation
  DType x_dtype;      // kFloat16 or kBFloat16
  DType scale_dtype;  // kFloat16 or kBFloat16
  bool asymmetric;
  bool float_out;
  MatvecEpilogue epilogue;
  float scale;  // of the finished product, before the residual (matvec.h)
  BesideParams beside;
  int device;
};

// y[r, i] = sum_k x[r, k] * scales[i, k / 128] * (q[i, k] - zero[i, k / 128]), then the epilogue;
// zero = 8 if symmetric
//
// And, in the same launch, beside.out[r, i] = sum_k x[r, k] * beside.weight[i, k], with the bits of
// rms_norm_project.
//
// Enqueues one kernel and returns: no allocation, no synchronisation, legal under stream capture.
// It may start while the previous kernel of the stream runs, and loads its first weights meanwhile.
Status w4_matvec(const W4MatvecParams& params, void* stream);

}  // namespace bytebound
