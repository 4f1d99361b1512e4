// Bytes on their way to shared memory, and who is told when they arrive.
#pragma once

#include <cstdint>
#include <cstring>

namespace emulation {

struct Member;

struct Transfer {
  void* p_to = nullptr;
  const void* p_from = nullptr;  // null: the bytes are in `value`
  unsigned char value[16] = {};
  unsigned num_bytes = 0;              // that are copied
  unsigned num_zeros = 0;              // that are written behind them
  std::uint64_t* p_barrier = nullptr;  // an mbarrier that counts the bytes
  const Member* p_member = nullptr;    // the block of the cluster that it goes to, if another
};

inline void carry_out(const Transfer& transfer) {
  const void* p_from = transfer.p_from == nullptr ? transfer.value : transfer.p_from;
  std::memcpy(transfer.p_to, p_from, transfer.num_bytes);
  std::memset(static_cast<char*>(transfer.p_to) + transfer.num_bytes, 0, transfer.num_zeros);
}

}  // namespace emulation
