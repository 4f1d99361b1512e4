// Adds accepted ids to the history that penalties look at. Pointers, sizes and a stream.
#pragma once

#include <cstdint>

#include "status.h"

namespace bytebound {

struct HistoryAppendParams {
  const std::int32_t* ids;      // [capacity]
  const std::int32_t* num_ids;  // [1], how many of them were accepted; null: all
  std::uint8_t* seen;           // [N], or null
  std::int32_t* counts;         // [N], or null
  std::int64_t capacity;        // 0 to 2^20
  std::int64_t n;               // N, 1 to 2^31 - 1
  int device;                   // the device that owns the pointers
};

// seen[id] = 1 and counts[id] += 1 for each of the first num_ids ids; an id outside 0 .. N-1, as
// the -1 behind the emitted ids of a cycle, is skipped.
//
// Enqueues one kernel of one block on `stream` and returns: no allocation, no synchronisation,
// legal under stream capture.
Status history_append(const HistoryAppendParams& params, void* stream);

}  // namespace bytebound
