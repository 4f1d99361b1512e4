// A block of an emulated kernel: one thread of the operating system, whose fibers are the threads
// of the block.
//
// A fiber runs until it has to wait for another one (a barrier, a shuffle, a number from another
// block). It then hands the control back to its block, which chooses by a random number who goes
// on. What a barrier does not order comes in any order, and a seed repeats the order within a
// block.
//
// What is not modelled: stores become visible in order, as on x86; a fiber is not interrupted
// between two waits; a warp does not run in lockstep, so nothing may rely on that it does.
#pragma once

#include <cuda_runtime_api.h>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "random.h"
#include "transfer.h"

namespace emulation {

constexpr unsigned kLanes = 32;
constexpr unsigned kNamedBarriers = 16;
constexpr std::size_t kMaxDynamicShared = 227 << 10;  // bytes, as sm_90 has them

// Who can end a wait: threads of the block alone, or also the copy engine and other blocks.
enum class Waker { kBlock, kAnyone };

// What a fiber waits for. The condition lies on the fiber's own stack.
struct Wait {
  bool (*is_over)(void* p_condition) = nullptr;
  void* p_condition = nullptr;
  const char* name = "its turn";
  Waker waker = Waker::kAnyone;
  bool is_poll = false;  // it looks again, and may find nothing new
};

struct Fiber {
  uint3 thread;    // threadIdx
  unsigned index;  // of the thread in the block
  Wait wait;
  bool has_begun = false;
  bool is_done = false;
  bool has_waited_for_previous = false;
  std::jmp_buf registers;
  std::vector<std::vector<Transfer>> copies = {{}};  // groups not complete; the last one is open
};

// Where the threads of a warp meet. Nobody can be two meetings ahead, so two sets of what they
// bring are enough.
struct Warp {
  struct Brought {
    std::uint64_t values[kLanes];
    float a[16][16];  // an mma's operands, row by row
    float b[16][8];
    std::uint8_t a_bytes[16][32];
    std::int8_t b_bytes[32][8];
    std::uint32_t addresses[kLanes];  // what an ldmatrix loads from, and to
    std::uint32_t words[kLanes][4];
  };
  unsigned num_lanes = 0;
  unsigned num_arrived = 0;
  unsigned num_met = 0;
  const char* name = nullptr;  // of the function that they meet in
  Brought brought[2];
};

struct NamedBarrier {
  unsigned num_arrived = 0;
  unsigned num_met = 0;
};

class Grid;
struct Cluster;

class Block {
 public:
  Block(Grid& grid, dim3 index, unsigned linear_index, char* p_stacks);

  // Runs all threads to their end, or until the grid has failed.
  void run();

  // For fibers, of this block.
  void wait(const Wait& wait);
  [[noreturn]] void fail(const std::string& message);
  void send(const Transfer& transfer) { in_flight_.push_back(transfer); }
  // The copies of a thread (cp.async), group by group.
  void begin_copy(const Transfer& transfer);
  void end_copy_group();
  void complete_copies(std::size_t but_groups);
  void note_event() { had_event_ = true; }
  Warp& warp() { return warps_[fiber_->index / kLanes]; }
  unsigned lane() const { return fiber_->index % kLanes; }
  unsigned rank() const;  // in the cluster
  dim3 size() const;
  dim3 grid_size() const;
  Cluster& cluster();

  Fiber& fiber() { return *fiber_; }
  Grid& grid() { return grid_; }
  Random& random() { return random_; }
  NamedBarrier& barrier(unsigned id) { return barriers_[id]; }
  unsigned num_threads() const { return static_cast<unsigned>(fibers_.size()); }

  const uint3 index;  // blockIdx

 private:
  bool run_round(bool everyone);
  void resume(Fiber& fiber);
  void deliver(std::size_t i);
  std::string describe() const;
  static void enter();

  Grid& grid_;
  const unsigned linear_index_;
  Random random_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  NamedBarrier barriers_[kNamedBarriers];
  std::vector<Transfer> in_flight_;
  Fiber* fiber_ = nullptr;  // that runs
  std::jmp_buf registers_;
  char* p_stacks_;
  unsigned num_live_;
  bool had_event_ = false;
};

// Of this OS thread. `t_shared` is the dynamic shared memory; it also is where the 32-bit addresses
// of shared memory count from, so that equal places of two blocks have equal addresses.
inline thread_local Block* t_block = nullptr;
constexpr std::size_t kGuard = 1 << 10;  // bytes behind it that nobody may touch
alignas(1024) inline thread_local unsigned char t_shared[kMaxDynamicShared + kGuard];

template <typename IsOver>
void wait_until(const char* name, Waker waker, IsOver is_over) {
  Wait wait;
  wait.is_over = [](void* p) { return (*static_cast<IsOver*>(p))(); };
  wait.p_condition = &is_over;
  wait.name = name;
  wait.waker = waker;
  t_block->wait(wait);
}

// Lets others run before memory is looked at that they may be writing.
inline void poll(const char* name) {
  Wait wait;
  wait.is_over = [](void*) { return true; };
  wait.name = name;
  wait.is_poll = true;
  t_block->wait(wait);
}

// All lanes of the warp call it, each for itself; the last one acts for all.
template <typename Act>
void meet(const char* name, Act act) {
  Warp& warp = t_block->warp();
  if (warp.num_arrived > 0 && std::strcmp(warp.name, name) != 0) {
    t_block->fail(std::string("lanes of a warp meet in ") + warp.name + " and in " + name);
  }
  warp.name = name;
  const unsigned num_met = warp.num_met;
  if (++warp.num_arrived == warp.num_lanes) {
    act(warp.brought[num_met % 2]);
    warp.num_arrived = 0;
    ++warp.num_met;
  }
  wait_until(name, Waker::kBlock, [&] { return warp.num_met != num_met; });
}

// Hands in a value and returns those of all lanes.
template <typename T>
const std::uint64_t* exchange(const char* name, T value) {
  static_assert(sizeof(T) <= 8);
  auto& brought = t_block->warp().brought[t_block->warp().num_met % 2];
  std::uint64_t& mine = brought.values[t_block->lane()];
  mine = 0;
  std::memcpy(&mine, &value, sizeof(T));
  meet(name, [](Warp::Brought&) {});
  return brought.values;
}

// num_threads threads of the block call it with this id.
inline void sync(const char* name, unsigned id, unsigned num_threads) {
  NamedBarrier& barrier = t_block->barrier(id);
  const unsigned num_met = barrier.num_met;
  if (++barrier.num_arrived == num_threads) {
    barrier.num_arrived = 0;
    ++barrier.num_met;
  }
  wait_until(name, Waker::kBlock, [&] { return barrier.num_met != num_met; });
}

}  // namespace emulation
