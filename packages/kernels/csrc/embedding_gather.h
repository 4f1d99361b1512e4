// Rows of an embedding table by id. Pointers, sizes, strides and a stream: no framework.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "status.h"

namespace bytebound {

struct EmbeddingGatherParams {
  const std::int32_t* ids;        // [T], contiguous
  const void* table;              // [N, D] of table_dtype, table_row_stride elements apart
  void* out;                      // [T, D] of out_dtype, out_row_stride elements apart
  std::int64_t rows;              // T, 0 to 2^31 - 1
  std::int64_t n;                 // N, 1 to 2^31 - 1
  std::int64_t d;                 // D, 1 to 2^24
  std::int64_t table_row_stride;  // in elements
  std::int64_t out_row_stride;    // in elements
  DType table_dtype;              // kFloat16 or kBFloat16
  DType out_dtype;                // table_dtype or kFloat32
  int device;                     // the device that owns the pointers
};

// out[t, :] = table[ids[t], :]; NaN where ids[t] is not in 0 .. N-1, and nothing is read then.
//
// Enqueues one kernel on `stream` and returns: no allocation, no synchronisation, legal under
// stream capture.
Status embedding_gather(const EmbeddingGatherParams& params, void* stream);

}  // namespace bytebound
