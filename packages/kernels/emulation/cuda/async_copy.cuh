// In place of csrc/cuda/async_copy.cuh. A copy is made at once or when the thread waits for it, as
// a random number says: who reads too early finds what was there before.
#pragma once

#include <cstdint>

namespace bytebound {

// Addresses count from the dynamic shared memory on; static shared memory lies before or behind it.
inline uint32_t shared_address(const void* p_shared) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(p_shared) - emulation::t_shared);
}
inline void* shared_pointer(uint32_t address) {
  return emulation::t_shared + static_cast<std::int32_t>(address);
}

inline void begin_copy(uint32_t to_shared, const void* p_from, int num_bytes, int num_zeros) {
  emulation::Transfer transfer;
  transfer.p_to = shared_pointer(to_shared);
  transfer.p_from = p_from;
  transfer.num_bytes = static_cast<unsigned>(num_bytes);
  transfer.num_zeros = static_cast<unsigned>(num_zeros);
  emulation::t_block->begin_copy(transfer);
}

inline void async_copy_16(uint32_t to_shared, const void* p_from, int num_bytes) {
  begin_copy(to_shared, p_from, num_bytes, 16 - num_bytes);
}
inline void async_copy_16(uint32_t to_shared, const void* p_from) {
  begin_copy(to_shared, p_from, 16, 0);
}
inline void async_copy_4(uint32_t to_shared, const void* p_from) {
  begin_copy(to_shared, p_from, 4, 0);
}

inline void async_copy_commit() {
  emulation::t_block->end_copy_group();
}
template <int kGroups>
void async_copy_wait_but() {
  emulation::t_block->complete_copies(kGroups);
}
inline void async_copy_wait() {
  emulation::t_block->end_copy_group();
  emulation::t_block->complete_copies(0);
}

// Reads the ends of what it asks for, so that they have to be there.
inline void prefetch_bytes(const void* p_from, int num_bytes) {
  if (num_bytes <= 0 || num_bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(p_from) % 16 != 0) {
    emulation::t_block->fail("prefetch_bytes of " + std::to_string(num_bytes) + " bytes");
  }
  const auto* p = static_cast<const volatile unsigned char*>(p_from);
  static_cast<void>(p[0]);
  static_cast<void>(p[num_bytes - 1]);
}

}  // namespace bytebound
