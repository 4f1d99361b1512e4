// In place of csrc/cuda/load_matrix.cuh. The last lane to come loads for all of them.
#pragma once

#include <cstdint>

#include "async_copy.cuh"

namespace bytebound {

// Lane l gets elements (row(l, i), column(l, i)), i = 0 and 1, of each matrix.
template <typename Row, typename Column>
void load_matrices_by(
    const char* name, uint32_t (&b)[4], uint32_t row_address, Row row, Column column) {
  emulation::Block& block = *emulation::t_block;
  auto& brought = block.warp().brought[block.warp().num_met % 2];
  const unsigned lane = block.lane();
  brought.addresses[lane] = row_address;
  emulation::meet(name, [&](emulation::Warp::Brought& all) {
    for (unsigned l = 0; l < 32; ++l) {
      for (unsigned m = 0; m < 4; ++m) {
        std::uint16_t elements[2];
        for (unsigned i = 0; i < 2; ++i) {
          const void* p_row = shared_pointer(all.addresses[8 * m + row(l, i)]);
          elements[i] = static_cast<const std::uint16_t*>(p_row)[column(l, i)];
        }
        all.words[l][m] = elements[0] | static_cast<uint32_t>(elements[1]) << 16;
      }
    }
  });
  for (unsigned m = 0; m < 4; ++m) {
    b[m] = brought.words[lane][m];
  }
}

inline void load_matrices(uint32_t (&b)[4], uint32_t row_address) {
  load_matrices_by(
      "load_matrices", b, row_address, [](unsigned l, unsigned) { return l / 4; },
      [](unsigned l, unsigned i) { return 2 * (l % 4) + i; });
}

inline void load_matrices_transposed(uint32_t (&b)[4], uint32_t row_address) {
  load_matrices_by(
      "load_matrices_transposed", b, row_address,
      [](unsigned l, unsigned i) { return 2 * (l % 4) + i; },
      [](unsigned l, unsigned) { return l / 4; });
}

inline void load_pair(uint32_t (&b)[2], uint32_t address) {
  std::memcpy(b, shared_pointer(address), sizeof b);
}

}  // namespace bytebound
