// Philox4x32-10: random numbers addressed by (seed, position, purpose), so that no stream is ever
// advanced or rewound. Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011. The same words as bytebound.philox.
#pragma once

#include <cstdint>

namespace bytebound {

// What the number at one position is for; different purposes give independent numbers.
enum Purpose : std::uint32_t {
  kPurposeTarget = 0,    // drawing an id from the target's own distribution
  kPurposeDraft = 1,     // drawing a guess from a draft's distribution
  kPurposeAccept = 2,    // deciding whether a guess is kept
  kPurposeResidual = 3,  // drawing the id that replaces a refused guess
};

// The number in [0, 1), 53 random bits, of this seed, position and purpose.
// key = seed, low word first; counter = (position low, position high, purpose, 0).
__device__ __forceinline__ double philox_uniform(std::uint64_t seed,
                                                 std::int64_t position,
                                                 std::uint32_t purpose) {
  constexpr std::uint32_t kMultiplier0 = 0xD2511F53u;
  constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t kKeyStep0 = 0x9E3779B9u;
  constexpr std::uint32_t kKeyStep1 = 0xBB67AE85u;
  constexpr int kRounds = 10;
  std::uint32_t c0 = static_cast<std::uint32_t>(position);
  std::uint32_t c1 = static_cast<std::uint32_t>(static_cast<std::uint64_t>(position) >> 32);
  std::uint32_t c2 = purpose;
  std::uint32_t c3 = 0;
  std::uint32_t k0 = static_cast<std::uint32_t>(seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(seed >> 32);
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const std::uint32_t high_0 = __umulhi(kMultiplier0, c0);
    const std::uint32_t low_0 = kMultiplier0 * c0;
    const std::uint32_t high_1 = __umulhi(kMultiplier1, c2);
    const std::uint32_t low_1 = kMultiplier1 * c2;
    c0 = high_1 ^ c1 ^ k0;
    c1 = low_1;
    c2 = high_0 ^ c3 ^ k1;
    c3 = low_0;
    k0 += kKeyStep0;
    k1 += kKeyStep1;
  }
  // 27 + 26 bits: all that a double's mantissa holds, so the result never rounds up to 1.
  const std::uint64_t bits = std::uint64_t{c0 >> 5} << 26 | c1 >> 6;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace bytebound
