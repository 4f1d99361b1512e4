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

constexpr int kMatvecSpareBlocks = 8;

// Blocks of a grid by default, for a matrix of `items` in four bits (1 or more), on a device that
// runs `most_blocks` at once. Part of the order of summation.
//
// A few places stay free, for the blocks of the kernel that comes next. Fewer blocks yet are taken
// where all warps then have equal shares, or where the longest is one or two items: more would not
// shorten it, and share more row blocks. In a whole step this is as fast as the fewest blocks of
// the same longest share (docs/experiments.md).
constexpr int matvec_blocks(std::int64_t items, int most_blocks) {
  const int blocks =
      most_blocks > 2 * kMatvecSpareBlocks ? most_blocks - kMatvecSpareBlocks : most_blocks;
  const std::int64_t warps = std::int64_t{blocks} * kMatvecWarps;
  const std::int64_t longest = (items + warps - 1) / warps;
  const std::int64_t block_items = longest * kMatvecWarps;
  const std::int64_t fewest = (items + block_items - 1) / block_items;
  return longest <= 2 || fewest * block_items == items ? static_cast<int>(fewest) : blocks;
}

// Bytes of scratch: what the blocks send each other. The first launch must find all bits set in it;
// each launch leaves it so. One stream at a time.
constexpr std::int64_t matvec_workspace_bytes(int num_blocks) {
  constexpr std::int64_t kMaxItemRows = 64;
  return num_blocks * kMaxItemRows * kMatvecRows * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace bytebound
