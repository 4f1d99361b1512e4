// A packed four-bit matrix as an ordinary one of 16-bit numbers, for a library's matrix product.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "status.h"

namespace bytebound {

struct W4UnpackParams {
  const void* weight;           // packed items (cuda/w4.cuh), 16-byte aligned
  void* out;                    // [N, K] of out_dtype, rows 16-byte aligned; interleaved: [2 N, K]
  std::int64_t out_row_stride;  // in elements
  std::int64_t n;               // of gate and up each one half, if interleaved
  std::int64_t k;               // a multiple of 128
  DType out_dtype;              // kFloat16 or kBFloat16
  DType scale_dtype;            // kFloat16 or kBFloat16
  bool asymmetric;
  bool interleaved;  // out is the rows of gate, then those of up
  int device;
};

// out[i, k] = scale[i, k / 128] * (q[i, k] - zero[i, k / 128]), rounded once; zero = 8 if symmetric
//
// Enqueues one kernel and returns: no allocation, no synchronisation, legal under stream capture.
Status w4_unpack(const W4UnpackParams& params, void* stream);

}  // namespace bytebound
