// An mbarrier: eight bytes of shared memory that count arrivals and bytes. A phase is complete when
// all have come that were expected; then the next one begins.
// PTX ISA, "mbarrier".
#pragma once

#include <cstdint>

#include "block.h"

namespace emulation {

void init_mbarrier(std::uint64_t* p, unsigned num_arrivals);
void arrive(std::uint64_t* p);
// Arrives, and says that so many bytes are on their way.
void arrive_expecting(std::uint64_t* p, unsigned num_bytes);
// So many bytes are there.
void complete_bytes(std::uint64_t* p, unsigned num_bytes);
// Whether the phase of that parity is complete; the one before the first counts as it.
bool is_phase_complete(const std::uint64_t* p, unsigned parity);

}  // namespace emulation
