// In place of csrc/cuda/barrier.cuh.
#pragma once

#include <cstdint>

#include "async_copy.cuh"
#include "mbarrier.h"

namespace bytebound {

inline void open_barrier(std::uint64_t* p_barrier, unsigned count) {
  emulation::init_mbarrier(p_barrier, count);
}

inline void publish_barriers() {}

inline void arrive_at(std::uint64_t* p_barrier) {
  emulation::arrive(p_barrier);
}

inline void wait_for_phase(std::uint64_t* p_barrier, unsigned parity) {
  emulation::wait_until("wait_for_phase", emulation::Waker::kAnyone,
                        [&] { return emulation::is_phase_complete(p_barrier, parity); });
}

inline bool is_complete(std::uint64_t* p_barrier, unsigned parity) {
  emulation::poll("is_complete");
  return emulation::is_phase_complete(p_barrier, parity);
}

inline std::uint64_t read_once_policy() {
  return 0;
}

inline void copy_bulk(void* p_shared,
                      const void* p_from,
                      unsigned num_bytes,
                      std::uint64_t* p_barrier,
                      std::uint64_t /* policy */) {
  emulation::arrive_expecting(p_barrier, num_bytes);
  emulation::Transfer transfer;
  transfer.p_to = p_shared;
  transfer.p_from = p_from;
  transfer.num_bytes = num_bytes;
  transfer.p_barrier = p_barrier;
  emulation::t_block->send(transfer);
}

template <int kId, int kThreads>
void sync_threads_of() {
  emulation::sync("sync_threads_of", kId, kThreads);
}

}  // namespace bytebound
