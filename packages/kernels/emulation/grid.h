// A launch: all blocks of a grid, some at a time, in the order of their indices.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "block.h"

namespace emulation {

struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks, along x
  bool overlap_previous = false;
  std::function<void()> kernel;  // what a thread does
};

// A block's place in its cluster, for the others of the cluster.
struct Member {
  std::atomic<unsigned char*> p_shared{nullptr};  // its t_shared; null before it runs
  std::atomic<bool> has_ended{false};
};

struct Cluster {
  std::atomic<unsigned> num_arrived{0};  // threads, at the cluster's barrier
  std::vector<Member> members;
};

class Grid {
 public:
  explicit Grid(const Launch& launch);

  // Returns when every block has ended.
  // Raises std::runtime_error: a thread broke a rule, or all wait for each other.
  void run();

  const Launch& launch() const { return launch_; }
  std::uint64_t seed() const { return seed_; }
  Cluster& cluster_of(unsigned block) { return clusters_[block / launch_.cluster]; }
  Member& member(unsigned block) { return cluster_of(block).members[block % launch_.cluster]; }

  // The first failure is the one that is reported.
  void fail(const std::string& message);
  // What another block was doing then.
  void add_to_failure(const std::string& message);
  bool has_failed() const { return failed_.load(std::memory_order_relaxed); }

  // Something happened that may end a wait. How often that was says whether anything still does.
  void note_event() { num_events_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t num_events() const { return num_events_.load(std::memory_order_relaxed); }
  double patience() const { return patience_; }

 private:
  void work();

  const Launch& launch_;
  std::vector<Cluster> clusters_;
  const unsigned num_blocks_;
  const std::uint64_t seed_;
  const double patience_;  // seconds without an event
  std::atomic<unsigned> next_block_{0};
  std::atomic<std::uint64_t> num_events_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::string failure_;
};

// The emulated card's multiprocessors: BYTEBOUND_EMULATION_SMS, or 4.
unsigned num_multiprocessors();

}  // namespace emulation
