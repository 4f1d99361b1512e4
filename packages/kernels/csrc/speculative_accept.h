// The greedy rule of a speculative cycle. Pointers, sizes and a stream: no framework.
#pragma once

#include <cstdint>

#include "status.h"

namespace bytebound {

struct SpeculativeAcceptParams {
  const std::int32_t* ids;     // [R]: the target's own choice at each row; -1 where it has none
  const std::int32_t* drafts;  // [R - 1]: the guesses; null at R = 1
  std::int32_t* cycle;         // [kCycleHeader + R], see cycle.h; position and total are updated
  std::int32_t* output;        // [capacity], a ring of the emitted ids, or null
  std::int64_t rows;           // R, 1 to kMaxCycleRows
  std::int64_t capacity;       // R to 2^30 where output is given
  int device;                  // the device that owns the pointers
};

// j = the number of leading i with drafts[i] == ids[i] >= 0. Emits ids[0] .. ids[j].
//
// Enqueues one kernel of one warp on `stream` and returns: no allocation, no synchronisation, legal
// under stream capture.
Status speculative_accept(const SpeculativeAcceptParams& params, void* stream);

}  // namespace bytebound
