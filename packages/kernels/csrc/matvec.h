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

// A small 16-bit matrix times the same activations, in blocks of its own behind those of the
// product (cuda/beside.cuh).
struct BesideParams {
  const void* weight;              // [N, K] of x's type, rows 16-byte aligned; null: there is none
  void* out;                       // [R, N] of the same type
  std::int64_t weight_row_stride;  // in elements
  std::int64_t out_row_stride;
  std::int64_t n;  // up to kMaxBesideN
  int num_blocks;  // beside_blocks()
};

constexpr int kBesideFeatures = 4;  // that a warp works on at a time
constexpr std::int64_t kMaxBesideN = 4096;
constexpr std::int64_t kMaxBesideK = 8192;  // longer rows have another order in rms_norm_project

// Its blocks, beside `num_blocks` on a device that runs `most_blocks` at once: as many as there are
// places free and features for, and one in any case, which waits for a place if there is none. No
// bit depends on it. They end before the product, which frees their places for the next kernel.
constexpr int beside_blocks(std::int64_t n, int num_blocks, int most_blocks) {
  const std::int64_t most = (n + kBesideFeatures - 1) / kBesideFeatures;
  const int free = most_blocks - num_blocks;
  return free < 1 ? 1 : free < most ? free : static_cast<int>(most);
}

// Bytes of scratch: what the blocks send each other. The first launch must find all bits set in it;
// each launch leaves it so. One stream at a time.
constexpr std::int64_t matvec_workspace_bytes(int num_blocks) {
  constexpr std::int64_t kMaxItemRows = 64;
  return num_blocks * kMaxItemRows * kMatvecRows * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace bytebound
