// The index of the largest value of each row. Pointers, sizes, strides and a stream: no framework.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "status.h"

namespace bytebound {

struct ArgmaxParams {
  const void* logits;          // [R, N] of dtype, row_stride elements from row to row
  const std::int32_t* id_map;  // [N], or null: the id of an index is the index
  std::int32_t* out;           // [R]
  void* workspace;             // argmax_workspace_bytes(R); all zero before the first call
  std::int64_t rows;           // R, 0 to 65535
  std::int64_t n;              // N, 1 to 2^30
  std::int64_t row_stride;     // in elements
  DType dtype;                 // kFloat16, kBFloat16 or kFloat32
  int device;                  // the device that owns the pointers
};

// The workspace is zero again after every call.
std::int64_t argmax_workspace_bytes(std::int64_t rows);

// i = the lowest index with logits[r, i] == max(logits[r, :]); out[r] = id_map[i], or i without a
// map; -1 where the row holds a NaN.
//
// Enqueues one kernel on `stream` and returns: no allocation, no synchronisation, legal under
// stream capture.
Status argmax(const ArgmaxParams& params, void* stream);

}  // namespace bytebound
