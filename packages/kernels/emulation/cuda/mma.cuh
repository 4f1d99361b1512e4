// In place of csrc/cuda/mma.cuh. A sum takes its 16 products one after the other, k ascending, each
// exact in float32, and is rounded after each: c = (..(c + a0 b0) + a1 b1) .. + a15 b15.
// The hardware adds several at once and cuts their low bits off, so its last bits are others.
// Integer sums are those of the hardware.
#pragma once

#include <cstdint>

namespace bytebound {

inline float widened(std::uint16_t bits, __half /* type */) {
  return __half2float(__ushort_as_half(bits));
}
inline float widened(std::uint16_t bits, __nv_bfloat16 /* type */) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

template <typename T>
void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], T type) {
  emulation::Block& block = *emulation::t_block;
  auto& brought = block.warp().brought[block.warp().num_met % 2];
  const unsigned i_quad = block.lane() / 4;
  const unsigned i_pair = block.lane() % 4;
  for (unsigned i = 0; i < 2; ++i) {
    const auto half = [&](uint32_t word) {
      return widened(static_cast<std::uint16_t>(word >> 16 * i), type);
    };
    const unsigned k = 2 * i_pair + i;
    brought.a[i_quad][k] = half(a[0]);
    brought.a[i_quad + 8][k] = half(a[1]);
    brought.a[i_quad][k + 8] = half(a[2]);
    brought.a[i_quad + 8][k + 8] = half(a[3]);
    brought.b[k][i_quad] = half(b[0]);
    brought.b[k + 8][i_quad] = half(b[1]);
  }
  emulation::meet("mma_m16n8k16", [](auto&) {});
  for (unsigned k = 0; k < 16; ++k) {
    for (unsigned i = 0; i < 4; ++i) {
      c[i] += brought.a[i_quad + i / 2 * 8][k] * brought.b[k][2 * i_pair + i % 2];
    }
  }
}

inline void mma_m16n8k32(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::Block& block = *emulation::t_block;
  auto& brought = block.warp().brought[block.warp().num_met % 2];
  const unsigned i_quad = block.lane() / 4;
  const unsigned i_pair = block.lane() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned k = 4 * i_pair + i;
    for (unsigned j = 0; j < 4; ++j) {
      brought.a_bytes[i_quad + j % 2 * 8][k + j / 2 * 16] =
          static_cast<std::uint8_t>(a[j] >> 8 * i);
    }
    for (unsigned j = 0; j < 2; ++j) {
      brought.b_bytes[k + j * 16][i_quad] = static_cast<std::int8_t>(b[j] >> 8 * i);
    }
  }
  emulation::meet("mma_m16n8k32", [](auto&) {});
  for (unsigned k = 0; k < 32; ++k) {
    for (unsigned i = 0; i < 4; ++i) {
      c[i] += brought.a_bytes[i_quad + i / 2 * 8][k] * brought.b_bytes[k][2 * i_pair + i % 2];
    }
  }
}

}  // namespace bytebound
