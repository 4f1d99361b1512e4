// Reads memory as fast as the device can, for the benchmark that measures the device's limit.
#pragma once

#include <cstdint>

#include "status.h"

namespace bytebound {

// Enqueues one kernel that reads `num_bytes` (a multiple of 16) at `p_memory` (16-byte aligned).
// `p_sink` (4 bytes) is written only if the data hash to a certain value, so that the loads stay.
Status read_bandwidth(
    const void* p_memory, std::int64_t num_bytes, void* p_sink, int device, void* stream);

}  // namespace bytebound
