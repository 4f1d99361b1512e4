#include "block.h"

#include <sched.h>
#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "grid.h"
#include "mbarrier.h"
#include "stacks.h"

namespace emulation {
namespace {

constexpr unsigned kMostTurns = 4;  // of a warp, before another one gets its own

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

Block::Block(Grid& grid, dim3 block_index, unsigned linear_index, char* p_stacks)
    : index{block_index.x, block_index.y, block_index.z},
      grid_(grid),
      linear_index_(linear_index),
      random_(Random(grid.seed() ^ (linear_index + 1) * 0xd1342543de82ef95u).next()),
      p_stacks_(p_stacks) {
  const dim3 size = grid.launch().block;
  fibers_.resize(size.x * size.y * size.z);
  warps_.resize((fibers_.size() + kLanes - 1) / kLanes);
  num_live_ = num_threads();
  for (unsigned i = 0; i < num_live_; ++i) {
    fibers_[i].thread = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    fibers_[i].index = i;
    fibers_[i].wait.is_over = [](void*) { return true; };
    ++warps_[i / kLanes].num_lanes;
  }
}

unsigned Block::rank() const {
  return linear_index_ % grid_.launch().cluster;
}

dim3 Block::size() const {
  return grid_.launch().block;
}

dim3 Block::grid_size() const {
  return grid_.launch().grid;
}

Cluster& Block::cluster() {
  return grid_.cluster_of(linear_index_);
}

void Block::run() {
  const std::size_t shared_bytes = grid_.launch().shared_bytes;
  // Not a number in any type, so that it shows when it is read before it is written.
  std::memset(t_shared, 0xff, shared_bytes + kGuard);
  double idle_since = 0.0;
  std::uint64_t num_events = 0;
  while (num_live_ > 0 && !grid_.has_failed()) {
    had_event_ = false;
    const bool has_run = run_round(false) || run_round(true);
    if (had_event_) {
      grid_.note_event();
      idle_since = 0.0;
      continue;
    }
    if (!has_run && in_flight_.empty() &&
        std::none_of(fibers_.begin(), fibers_.end(),
                     [](const Fiber& f) { return !f.is_done && f.wait.waker == Waker::kAnyone; })) {
      grid_.fail("deadlock");
      break;
    }
    // Only another block can help.
    sched_yield();
    if (idle_since == 0.0 || grid_.num_events() != num_events) {
      idle_since = seconds();
      num_events = grid_.num_events();
    } else if (seconds() - idle_since > grid_.patience()) {
      grid_.fail("deadlock: nothing happens any more");
    }
  }
  while (!in_flight_.empty() && !grid_.has_failed()) {
    deliver(0);
  }
  for (std::size_t i = 0; i < kGuard && !grid_.has_failed(); ++i) {
    if (t_shared[shared_bytes + i] != 0xff) {
      grid_.fail("byte " + std::to_string(i) + " behind the dynamic shared memory was written");
    }
  }
  if (grid_.has_failed()) {
    grid_.add_to_failure(describe());
  }
}

// Warps in random order, each with its threads from a random one on. Unless it is for everyone,
// some stay behind and some get ahead. False: nobody could run.
bool Block::run_round(bool everyone) {
  bool has_run = false;
  for (std::size_t i = 0; i < in_flight_.size();) {
    if (everyone || random_.below(4) == 0) {
      deliver(i);
      has_run = true;
    } else {
      ++i;
    }
  }
  const unsigned num_warps = static_cast<unsigned>(warps_.size());
  const unsigned first_warp = random_.below(num_warps);
  for (unsigned w = 0; w < num_warps; ++w) {
    const unsigned i_warp = (first_warp + w) % num_warps;
    if (!everyone && random_.below(4) == 0) {
      continue;
    }
    for (unsigned turns = everyone ? 1 : 1 + random_.below(kMostTurns); turns > 0; --turns) {
      const unsigned num_lanes = warps_[i_warp].num_lanes;
      const unsigned first_lane = random_.below(num_lanes);
      for (unsigned l = 0; l < num_lanes; ++l) {
        Fiber& fiber = fibers_[i_warp * kLanes + (first_lane + l) % num_lanes];
        if (!fiber.is_done && fiber.wait.is_over(fiber.wait.p_condition)) {
          resume(fiber);
          has_run = true;
          if (grid_.has_failed()) {
            return true;
          }
        }
      }
    }
  }
  return has_run;
}

void Block::resume(Fiber& fiber) {
  fiber_ = &fiber;
  if (_setjmp(registers_) == 0) {
    if (fiber.has_begun) {
      _longjmp(fiber.registers, 1);
    }
    fiber.has_begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = p_stacks_ + fiber.index * kStackBytes;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, &Block::enter, 0);
    setcontext(&context);
  }
  had_event_ |= fiber.is_done || !fiber.wait.is_poll;
  num_live_ -= fiber.is_done ? 1 : 0;
}

// Where a fiber begins.
void Block::enter() {
  Block& block = *t_block;
  const Launch& launch = block.grid_.launch();
  launch.kernel();
  if (launch.overlap_previous && !block.fiber().has_waited_for_previous) {
    block.fail(
        "a thread of a launch that overlaps the previous one ended without "
        "wait_for_previous_kernel()");
  }
  block.fiber().is_done = true;
  _longjmp(block.registers_, 1);
}

void Block::wait(const Wait& wait) {
  fiber_->wait = wait;
  if (_setjmp(fiber_->registers) == 0) {
    _longjmp(registers_, 1);
  }
}

void Block::fail(const std::string& message) {
  {
    const uint3& t = fiber_->thread;
    grid_.fail(message + " (block " + std::to_string(index.x) + "," + std::to_string(index.y) +
               ", thread " + std::to_string(t.x) + ")");
  }
  _longjmp(registers_, 1);
}

void Block::deliver(std::size_t i) {
  const Transfer transfer = in_flight_[i];
  in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
  had_event_ = true;
  if (transfer.p_member != nullptr && transfer.p_member->has_ended) {
    grid_.fail("a message to a block of the cluster that has ended");
    return;
  }
  carry_out(transfer);
  if (transfer.p_barrier != nullptr) {
    complete_bytes(transfer.p_barrier, transfer.num_bytes);
  }
}

void Block::begin_copy(const Transfer& transfer) {
  if (random_.below(2) == 0) {
    carry_out(transfer);
  } else {
    fiber_->copies.back().push_back(transfer);
  }
}

void Block::end_copy_group() {
  fiber_->copies.emplace_back();
}

void Block::complete_copies(std::size_t but_groups) {
  auto& groups = fiber_->copies;
  while (groups.size() > but_groups + 1) {
    for (const Transfer& transfer : groups.front()) {
      carry_out(transfer);
    }
    groups.erase(groups.begin());
  }
}

// "12 threads wait in __syncthreads, 20 have ended"
std::string Block::describe() const {
  std::map<std::string, int> counts;
  for (const Fiber& fiber : fibers_) {
    ++counts[fiber.is_done ? "have ended" : std::string("wait in ") + fiber.wait.name];
  }
  std::string text = "block " + std::to_string(index.x) + "," + std::to_string(index.y);
  const char* separator = ": ";
  for (const auto& [what, count] : counts) {
    text += separator + std::to_string(count) + " threads " + what;
    separator = ", ";
  }
  return text;
}

}  // namespace emulation
