// The stacks of a block's fibers. Kept for later blocks: fresh memory costs a fault for each page.
#pragma once

#include <cstddef>

namespace emulation {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr std::size_t kMostThreads = 1024;

// kMostThreads stacks of kStackBytes each, for the time of its life.
class Stacks {
 public:
  Stacks();
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  char* get() const { return p_memory_; }

 private:
  char* p_memory_;
};

}  // namespace emulation
