// The random numbers that choose who runs next: SplitMix64.
#pragma once

#include <cstdint>

namespace emulation {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // 0 to n - 1.
  unsigned below(unsigned n) { return static_cast<unsigned>((next() >> 32) * n >> 32); }

 private:
  std::uint64_t state_;
};

}  // namespace emulation
