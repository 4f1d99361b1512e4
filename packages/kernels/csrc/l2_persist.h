// Keeps a range of memory in the L2 cache: an access policy window on a stream.
//
// A device sets a part of its L2 aside for accesses that are marked persisting; a window marks
// those of one range, for the kernels that are launched on its stream from then on. A kernel that
// is captured takes the window along into its graph node.
#pragma once

#include <cstdint>

#include "status.h"

namespace bytebound {

struct L2PersistLimits {
  std::int64_t set_aside_bytes;  // the largest part of the L2 that can be set aside; 0: none can
  std::int64_t window_bytes;     // the longest range of one window
};

Status l2_persist_limits(int device, L2PersistLimits* limits);

// Sets the window of `stream` to `num_bytes` at `p_memory`, of which `hit_ratio` is to stay, and
// lets the device's set-aside grow to what that needs. `*set_aside_bytes` is what it then is.
Status l2_persist(const void* p_memory,
                  std::int64_t num_bytes,
                  float hit_ratio,
                  int device,
                  void* stream,
                  std::int64_t* set_aside_bytes);

// Takes the window off `stream`, and gives up what is kept in the L2 of its device.
Status l2_persist_reset(void* stream);

}  // namespace bytebound
