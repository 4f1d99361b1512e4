// In place of csrc/cuda/dependent.cuh. Kernels run one after the other; that a thread waits for the
// previous one is checked when it ends.
#pragma once

namespace bytebound {

inline void wait_for_previous_kernel() {
  emulation::t_block->fiber().has_waited_for_previous = true;
}

inline void allow_next_kernel() {}

}  // namespace bytebound
