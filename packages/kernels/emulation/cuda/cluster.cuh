// In place of csrc/cuda/cluster.cuh.
#pragma once

#include <cstdint>

#include "async_copy.cuh"
#include "grid.h"
#include "mbarrier.h"

namespace bytebound {

constexpr bool kHasClusters = true;

inline unsigned cluster_rank() {
  return emulation::t_block->rank();
}

inline void cluster_arrive() {
  ++emulation::t_block->cluster().num_arrived;
}

inline void cluster_wait() {
  emulation::Block& block = *emulation::t_block;
  const auto& cluster = block.cluster();
  const std::size_t everyone = cluster.members.size() * block.num_threads();
  emulation::wait_until("cluster_wait", emulation::Waker::kAnyone,
                        [&] { return cluster.num_arrived == everyone; });
}

struct Mailbox {
  std::uint64_t barrier;
};

inline void open_mailbox(Mailbox* p_mailbox, std::uint32_t num_bytes) {
  emulation::init_mbarrier(&p_mailbox->barrier, 1);
  emulation::arrive_expecting(&p_mailbox->barrier, num_bytes);
}

inline void send_to_block(float4* p_shared,
                          const float4& value,
                          Mailbox* p_mailbox,
                          unsigned rank) {
  const emulation::Member& member = emulation::t_block->cluster().members[rank];
  unsigned char* p_other = member.p_shared;
  if (p_other == nullptr) {
    emulation::t_block->fail("a message to a block of the cluster that has not started");
  }
  // The same place in the other's memory.
  const auto there = [&](const void* p) {
    return p_other + static_cast<std::int32_t>(shared_address(p));
  };
  emulation::Transfer transfer;
  transfer.p_to = there(p_shared);
  std::memcpy(transfer.value, &value, sizeof value);
  transfer.num_bytes = sizeof value;
  transfer.p_barrier = reinterpret_cast<std::uint64_t*>(there(&p_mailbox->barrier));
  transfer.p_member = &member;
  emulation::t_block->send(transfer);
}

inline void wait_for_mail(Mailbox* p_mailbox) {
  emulation::wait_until("wait_for_mail", emulation::Waker::kAnyone,
                        [&] { return emulation::is_phase_complete(&p_mailbox->barrier, 0); });
}

}  // namespace bytebound
