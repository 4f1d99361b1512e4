// The end of a speculative cycle: counters, emitted ids and the output ring, by one warp.
#pragma once

#include <cstdint>

#include "../cycle.h"

namespace bytebound {

struct CommitArgs {
  std::int32_t* p_cycle;   // kCycleHeader + rows words
  std::int32_t* p_output;  // [capacity], or null
  int capacity;            // of the ring, at least rows
  int rows;                // R = k + 1, up to kMaxCycleRows
};

// Lane i holds draft i in `draft`; lane j of them is replaced by `next`, and what follows is -1.
// Call it in all lanes of one warp, after every other reader of the cycle's words is done.
__device__ __forceinline__ void commit_cycle(const CommitArgs& args,
                                             int draft,
                                             int num_accepted,
                                             int next) {
  const int i_lane = threadIdx.x % 32;
  std::int32_t* p_cycle = args.p_cycle;
  const int position = p_cycle[kCyclePosition];
  const int total = p_cycle[kCycleTotalEmitted];
  const int id = i_lane < num_accepted ? draft : i_lane == num_accepted ? next : -1;
  if (i_lane < args.rows) {
    p_cycle[kCycleHeader + i_lane] = id;
  }
  if (args.p_output != nullptr && i_lane <= num_accepted) {
    const unsigned i_output = static_cast<unsigned>(total) + static_cast<unsigned>(i_lane);
    args.p_output[i_output % static_cast<unsigned>(args.capacity)] = id;
  }
  __syncwarp();  // every lane has read the words that lane 0 now changes
  if (i_lane == 0) {
    const unsigned new_total = static_cast<unsigned>(total) + num_accepted + 1u;
    p_cycle[kCyclePosition] = position + num_accepted + 1;
    p_cycle[kCycleNextToken] = next;
    p_cycle[kCycleNumAccepted] = num_accepted;
    p_cycle[kCycleNumEmitted] = num_accepted + 1;
    p_cycle[kCycleTotalEmitted] = static_cast<std::int32_t>(new_total & 0x7fffffffu);
  }
}

}  // namespace bytebound
