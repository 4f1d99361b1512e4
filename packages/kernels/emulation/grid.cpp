#include "grid.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>

#include "stacks.h"

namespace emulation {
namespace {

std::mutex stacks_mutex;
std::vector<char*> free_stacks;

double number_from(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::strtod(text, nullptr);
}

// Every launch has an order of its own.
std::uint64_t next_seed() {
  static std::atomic<std::uint64_t> num_launches{0};
  const auto seed = static_cast<std::uint64_t>(number_from("BYTEBOUND_EMULATION_SEED", 0));
  return Random(seed + (num_launches.fetch_add(1) << 32)).next();
}

}  // namespace

Stacks::Stacks() : p_memory_(nullptr) {
  {
    const std::lock_guard<std::mutex> lock(stacks_mutex);
    if (!free_stacks.empty()) {
      p_memory_ = free_stacks.back();
      free_stacks.pop_back();
      return;
    }
  }
  void* p = mmap(nullptr, kStackBytes * kMostThreads, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (p == MAP_FAILED) {
    throw std::bad_alloc();
  }
  p_memory_ = static_cast<char*>(p);
}

Stacks::~Stacks() {
  const std::lock_guard<std::mutex> lock(stacks_mutex);
  free_stacks.push_back(p_memory_);
}

unsigned num_multiprocessors() {
  return static_cast<unsigned>(number_from("BYTEBOUND_EMULATION_SMS", 4));
}

Grid::Grid(const Launch& launch)
    : launch_(launch),
      num_blocks_(launch.grid.x * launch.grid.y * launch.grid.z),
      seed_(next_seed()),
      patience_(number_from("BYTEBOUND_EMULATION_PATIENCE", 5)) {
  if (launch.block.x * launch.block.y * launch.block.z > kMostThreads ||
      launch.shared_bytes > kMaxDynamicShared || launch.grid.x % launch.cluster != 0) {
    throw std::runtime_error("emulation: a launch that the card does not take");
  }
  clusters_ = std::vector<Cluster>(num_blocks_ / launch.cluster);
  for (Cluster& cluster : clusters_) {
    cluster.members = std::vector<Member>(launch.cluster);
  }
}

void Grid::fail(const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failed_.exchange(true)) {
    failure_ = message;
  }
}

void Grid::add_to_failure(const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_ += "\n  " + message;
}

void Grid::run() {
  // As many blocks at once as kernels count on that stay on the card and wait for each other: two
  // for each multiprocessor, and a cluster. Others may wait for blocks of lower index only.
  const unsigned at_once = std::max(2 * num_multiprocessors(), launch_.cluster);
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < std::min(num_blocks_, at_once); ++i) {
    workers.emplace_back([this] { work(); });
  }
  for (std::thread& worker : workers) {
    worker.join();
  }
  if (failed_) {
    throw std::runtime_error("emulation: " + failure_);
  }
}

void Grid::work() {
  const Stacks stacks;
  while (!has_failed()) {
    const unsigned i = next_block_.fetch_add(1);
    if (i >= num_blocks_) {
      return;
    }
    const dim3& size = launch_.grid;
    const dim3 index(i % size.x, i / size.x % size.y, i / size.x / size.y);
    const auto block = std::make_unique<Block>(*this, index, i, stacks.get());
    t_block = block.get();
    member(i).p_shared = t_shared;
    block->run();
    member(i).has_ended = true;
    note_event();
  }
}

}  // namespace emulation
