// RMSNorm of a few rows and the product of the normalised rows with a small matrix, in one kernel.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "status.h"

namespace bytebound {

struct RmsNormProjectParams {
  const float* x;                      // [R, D], rows 16-byte aligned
  const float* weight;                 // [D], of the norm; 16-byte aligned
  const void* projection;              // [N, D] of dtype, rows 16-byte aligned
  void* out;                           // [R, D] of dtype, rows 16-byte aligned
  void* projected;                     // [R, N] of dtype
  std::int64_t x_row_stride;           // in elements
  std::int64_t projection_row_stride;  // in elements
  std::int64_t out_row_stride;         // in elements
  std::int64_t projected_row_stride;   // in elements
  std::int64_t rows;                   // R, 1 to kMaxProjectRows
  std::int64_t n;                      // N, 1 to kMaxProjectFeatures
  std::int64_t d;                      // D, a multiple of 64, up to 2^30
  DType dtype;                         // kFloat16 or kBFloat16
  float eps;
  int device;
};

constexpr std::int64_t kMaxProjectRows = 16;
// Every block normalises a whole row for a few features: dense_matvec is the op for large matrices.
constexpr std::int64_t kMaxProjectFeatures = 4096;

// out[r, i] = x[r, i] * rsqrt(mean_i(x[r, i]^2) + eps) * (1 + weight[i]), with the bits of rms_norm
// projected[r, n] = sum_i out[r, i] * projection[n, i], of the rounded out
//
// Enqueues one kernel on `stream` and returns: no allocation, no synchronisation, no workspace,
// legal under stream capture. It may start while the previous kernel of the stream runs, and reads
// `weight` and `projection` meanwhile. The bits of an element of `projected` depend on its row of
// x, on its row of the projection, on weight, D and eps alone: not on R or N.
Status rms_norm_project(const RmsNormProjectParams& params, void* stream);

}  // namespace bytebound
