// What the products of a matrix with a few vectors share: epilogues, partition, workspace.
#pragma once

#include <cstdint>

namespace bytebound {

// What happens to the finished sums. The numbers are part of the ABI.
//
// `scale` is applied in float32 before a residual is added and before the result is rounded. With
// it a caller keeps a wide float16 intermediate (SwiGLU's product) in range by an exact power of
// two, and takes that off again in the next product.
enum class MatvecEpilogue : int {
  kStore = 0,        // out = scale * y
  kAddResidual = 1,  // out = residual + scale * y
  kSwiGlu = 2,       // out[i] = scale * silu(gate[i]) * up[i], of rows that interleave the two
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
