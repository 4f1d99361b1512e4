// The sampled rule of a speculative cycle. Pointers, sizes and a stream: no framework.
#pragma once

#include <cstdint>

#include "status.h"

namespace bytebound {

struct SpeculativeSampleParams {
  const double* weights;        // [R, N]: the target's, as sample() writes them
  const double* totals;         // [R]
  const std::int32_t* drafts;   // [R - 1]; null at R = 1
  const double* draft_weights;  // [R - 1, N]: what each draft was drawn from; null: certain drafts
  const double* draft_totals;   // [R - 1]; null exactly where draft_weights is
  const std::int64_t* seed;     // [1]
  std::int32_t* cycle;          // [kCycleHeader + R], see cycle.h; position and total are updated
  std::int32_t* output;         // [capacity], a ring of the emitted ids, or null
  void* workspace;              // speculative_sample_workspace_bytes(N); zero before the first call
  std::int64_t rows;            // R, 1 to kMaxCycleRows
  std::int64_t n;               // N, 1 to 2^22
  std::int64_t capacity;        // R to 2^30 where output is given
  int device;                   // the device that owns the pointers
};

std::int64_t speculative_sample_workspace_bytes(std::int64_t n);

// With p_i = weights[i] / totals[i], q_i = draft_weights[i] / draft_totals[i] or, for a certain
// draft, 1 at drafts[i], and position = cycle[kCyclePosition]: draft i stands if all before it do
// and
//   uniform(seed, position + i, accept) < p_i[drafts[i]] / q_i[drafts[i]].
// The first that does not, j, is replaced by a draw from max(0, p_j - q_j) with the number of
// (position + j, residual); behind the last, one id is drawn from p with that of (position + j,
// target). An id of -1 is emitted where the distribution has no finite sum above 0.
//
// Enqueues one kernel on `stream` and returns: no allocation, no synchronisation, legal under
// stream capture.
Status speculative_sample(const SpeculativeSampleParams& params, void* stream);

}  // namespace bytebound
