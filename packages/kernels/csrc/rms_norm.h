// RMSNorm with the "1 + w" convention. Pointers, sizes, strides and a stream: no framework.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "status.h"

namespace bytebound {

struct RmsNormParams {
  const void* x;                // [T, D] of x_dtype, x_row_stride elements from row to row
  const void* weight;           // [D] of weight_dtype, contiguous
  void* out;                    // [T, D] of out_dtype; may be x itself, at the same stride
  std::int64_t rows;            // T, 0 to 2^31 - 1
  std::int64_t d;               // D, 1 to 2^30
  std::int64_t x_row_stride;    // in elements; 0 repeats one row
  std::int64_t out_row_stride;  // in elements
  DType x_dtype;
  DType weight_dtype;  // x_dtype or kFloat32
  DType out_dtype;     // x_dtype or, where x and weight are float32, a 16-bit type
  float eps;
  int device;  // the device that owns the three pointers
};

// out[t, i] = x[t, i] * rsqrt(mean_i(x[t, i]^2) + eps) * (1 + weight[i])
//
// Enqueues one kernel on `stream` (a cudaStream_t) and returns: no allocation, no synchronisation,
// legal under stream capture. It may start while the previous kernel of the stream runs, and reads
// `weight` meanwhile. A row's bits depend on the row, the weight, D and eps alone: not on
// T, the strides or the alignment.
Status rms_norm(const RmsNormParams& params, void* stream);

}  // namespace bytebound
