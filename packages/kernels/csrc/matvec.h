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

// Blocks of a grid by default, for a matrix of `items` in four bits (1 or more): the fewest, at
// most `most_blocks`, with which no warp has a longer share than with `most_blocks`. Part of the
// order of summation. More blocks would not shorten the longest share, and share more row blocks.
constexpr int matvec_blocks(std::int64_t items, int most_blocks) {
  const std::int64_t most_warps = std::int64_t{most_blocks} * kMatvecWarps;
  const std::int64_t longest = (items + most_warps - 1) / most_warps;
  const std::int64_t block_items = longest * kMatvecWarps;
  return static_cast<int>((items + block_items - 1) / block_items);
}

// Bytes of scratch: what the blocks send each other. The first launch must find all bits set in it;
// each launch leaves it so. One stream at a time.
constexpr std::int64_t matvec_workspace_bytes(int num_blocks) {
  constexpr std::int64_t kMaxItemRows = 64;
  return num_blocks * kMaxItemRows * kMatvecRows * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace bytebound
