// What the products of a matrix with a few vectors share: epilogues, partition, workspace.
#pragma once

#include <cstdint>

namespace bytebound {

// What happens to the finished sums. The numbers are part of the ABI.
enum class MatvecEpilogue : int {
  kStore = 0,        // out = y
  kAddResidual = 1,  // out = residual + y
  kSwiGlu = 2,       // out[i] = silu(gate[i]) * up[i], of a matrix whose rows interleave the two
};

constexpr int kMatvecRows = 8;   // activation rows of one launch
constexpr int kMatvecWarps = 8;  // of a block

// Bytes of scratch: what the blocks send each other. The first launch must find all bits set in it;
// each launch leaves it so. One stream at a time.
constexpr std::int64_t matvec_workspace_bytes(int num_blocks) {
  constexpr std::int64_t kMaxItemRows = 64;
  return num_blocks * kMaxItemRows * kMatvecRows * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace bytebound
