// Four-bit matrix [N, K] times any number of activation rows: a prompt's rows, not a step's.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "matvec.h"
#include "status.h"

namespace bytebound {

struct W4MatmulParams {
  const void* weight;         // packed items (cuda/w4.cuh), 16-byte aligned
  const void* x;              // [M, K] of x_dtype, rows 16-byte aligned
  void* out;                  // [M, N], of x_dtype or float32
  const void* residual;       // [M, N] of out's type, for kAddResidual; may be out itself
  void* workspace;            // w4_matmul_workspace_bytes(num_sms)
  std::int64_t x_row_stride;  // in elements
  std::int64_t out_row_stride;
  std::int64_t residual_row_stride;
  std::int64_t rows;  // M, 0 or more
  std::int64_t n;     // output features: of gate and up each one half, for kSwiGlu
  std::int64_t k;     // a multiple of 128
  int num_sms;        // multiprocessors to fill; part of the order of summation
  DType x_dtype;      // kFloat16 or kBFloat16
  DType scale_dtype;  // kFloat16 or kBFloat16
  bool asymmetric;
  bool float_out;
  MatvecEpilogue epilogue;
  float scale;  // of the finished product, before the residual (matvec.h)
  int device;
};

constexpr int kMatmulBlocksPerSm = 4;               // at most
constexpr std::int64_t kMatmulPartBytes = 1 << 16;  // sums that the blocks of one SM may send

// Bytes of scratch. The first launch must find all bits set in the first kMatmulBlocksPerSm *
// num_sms ints of it; each launch leaves them so. One stream at a time.
constexpr std::int64_t w4_matmul_workspace_bytes(std::int64_t num_sms) {
  return num_sms * (kMatmulPartBytes + kMatmulBlocksPerSm * 4);
}

// y[m, i] = sum_k x[m, k] * scales[i, k / 128] * (q[i, k] - zero[i, k / 128]), then the epilogue;
// zero = 8 if symmetric
//
// Enqueues one kernel and returns: no allocation, no synchronisation, legal under stream capture.
// It may start while the previous kernel of the stream runs, and loads its first weights meanwhile.
// The order of summation depends on M, N, K and num_sms, not on what the other rows hold.
Status w4_matmul(const W4MatmulParams& params, void* stream);

}  // namespace bytebound
