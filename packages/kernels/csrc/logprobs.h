// Log-probabilities of chosen ids and of the likeliest ones. Pointers, sizes, strides and a stream.
#pragma once

#include <cstdint>

#include "status.h"

namespace bytebound {

struct LogprobsParams {
  const float* logits;      // [R, N], row_stride elements from row to row
  const std::int32_t* ids;  // [R]: the id of each row whose value is asked for
  double* out_values;       // [R, 1 + n]: of ids[r], then of the n likeliest, likeliest first
  std::int32_t* out_ids;    // [R, 1 + n]: the ids of out_values
  void* workspace;          // logprobs_workspace_bytes(R, N, n); all zero before the first call
  std::int64_t rows;        // R, 0 to 65535
  std::int64_t n;           // N, 1 to 2^22
  std::int64_t row_stride;  // in elements
  std::int64_t num_top;     // n, 0 to 20, at most N
  int device;               // the device that owns the pointers
};

std::int64_t logprobs_workspace_bytes(std::int64_t rows, std::int64_t n, std::int64_t num_top);

// value(i) = logits[r, i] - log(sum_j(exp(logits[r, j]))), in float64. Equal logits are in the
// order of their ids. A row with NaN or +infinity, or with nothing but -infinity, gives NaN values
// and the id -1 for each of the likeliest; an id outside 0 .. N-1 has the value NaN.
//
// Enqueues one kernel on `stream` and returns: no allocation, no synchronisation, legal under
// stream capture.
Status logprobs(const LogprobsParams& params, void* stream);

}  // namespace bytebound
