// 16-bit matrix [N, K] in its ordinary layout times up to 16 activation rows.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "matvec.h"
#include "status.h"

namespace bytebound {

struct DenseMatvecParams {
  const void* weight;    // [N, K] of x's type, rows 16-byte aligned; the gate, for kSwiGlu
  const void* up;        // [N, K] likewise, for kSwiGlu
  const void* x;         // [R, K] of x_dtype, rows 16-byte aligned
  void* out;             // [R, N], of x_dtype or float32
  const void* residual;  // [R, N] of out's type, for kAddResidual; may be out itself
  void* workspace;       // matvec_workspace_bytes()
  std::int64_t weight_row_stride;  // in elements
  std::int64_t up_row_stride;
  std::int64_t x_row_stride;
  std::int64_t out_row_stride;
  std::int64_t residual_row_stride;
  std::int64_t rows;  // R, up to 16
  std::int64_t n;     // output features
  std::int64_t k;     // a multiple of 64
  int num_blocks;     // among which items are shared; part of the order of summation
  DType x_dtype;      // kFloat16 or kBFloat16
  bool float_out;
  MatvecEpilogue epilogue;
  float scale;  // of the finished product, before the residual (matvec.h)
  int device;
};

// y[r, i] = sum_k x[r, k] * weight[i, k], then the epilogue; kSwiGlu takes gate = weight and up
//
// Enqueues a kernel, or two beyond 8 rows, and returns: no allocation, no synchronisation, legal
// under stream capture. It may start while the previous kernel of the stream runs, and loads its
// first weights meanwhile.
Status dense_matvec(const DenseMatvecParams& params, void* stream);

}  // namespace bytebound
