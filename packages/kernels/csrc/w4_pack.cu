// Packs four-bit matrices: a block for each item, a thread for every four words of it.
//
// A word of an item holds four codes of one row and four of another, which may come from different
// stored matrices: each call replaces its own nibbles only.
#include "w4_pack.h"

#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/w4.cuh"

namespace bytebound {
namespace {

constexpr int kThreads = 256;
constexpr int kItemWords = kWordBytes / 4;
constexpr int kCodesPerWord = 8;

struct KernelArgs {
  const uint32_t* p_packed;
  const uint16_t* p_scale;
  const uint32_t* p_zero_point;
  unsigned char* p_items;
  std::int64_t n;
  std::int64_t first_row;
  int num_groups;
  W4Part part;
};

// The stored row that becomes a row of an item, or -1.
__device__ __forceinline__ std::int64_t stored_row(const KernelArgs& args,
                                                   std::int64_t i_row_block,
                                                   int i_row) {
  std::int64_t row = i_row_block * kItemRows + i_row - args.first_row;
  if (args.part != W4Part::kRows) {
    const bool upper = i_row % kTileRows >= kMmaPairs;
    if (upper != (args.part == W4Part::kUp)) {
      return -1;
    }
    row = i_row_block * (kItemRows / 2) + i_row / kTileRows * kMmaPairs + i_row % kMmaPairs;
  }
  return row >= 0 && row < args.n ? row : -1;
}

__global__ void __launch_bounds__(kThreads) w4_pack_kernel(const KernelArgs args) {
  wait_for_previous_kernel();
  const int num_groups = args.num_groups;
  const bool asymmetric = args.p_zero_point != nullptr;
  const std::int64_t i_row_block = blockIdx.x / num_groups;
  const int i_group = static_cast<int>(blockIdx.x % num_groups);
  unsigned char* p_item =
      args.p_items + static_cast<std::int64_t>(blockIdx.x) * item_bytes(asymmetric);
  const std::int64_t row_words = static_cast<std::int64_t>(num_groups) * kGroup / kCodesPerWord;

  for (int i_word = threadIdx.x; i_word < kItemWords; i_word += kThreads) {
    const int i_load = i_word / 128;
    const int i_lane = i_word % 128 / 4;
    const int i_step = i_load % 2 * 4 + i_word % 4;
    const int i_column = i_lane % 4 * 32 + i_step * 4;  // within the group
    uint32_t* p_word = reinterpret_cast<uint32_t*>(p_item) + i_word;
    uint32_t word = *p_word;
    for (int i_half = 0; i_half < 2; ++i_half) {
      const int i_row = i_load / 2 * kTileRows + i_lane / 4 + i_half * kMmaPairs;
      const std::int64_t row = stored_row(args, i_row_block, i_row);
      if (row < 0) {
        continue;
      }
      const std::int64_t at = row * row_words + (i_group * kGroup + i_column) / kCodesPerWord;
      const uint32_t four = args.p_packed[at] >> (i_column % kCodesPerWord * 4) & 0xffffu;
      // Codes 0 and 1 go to the two halves of the word, codes 2 and 3 eight bits higher.
      const uint32_t spread = (four & 0xfu) | (four >> 4 & 0xfu) << 16 | (four >> 8 & 0xfu) << 8 |
                              (four >> 12 & 0xfu) << 24;
      word = (word & ~(0x0f0f0f0fu << (4 * i_half))) | spread << (4 * i_half);
    }
    *p_word = word;
  }

  if (threadIdx.x < kItemRows) {
    const int i_quad = threadIdx.x / 8;
    const int i_place = threadIdx.x % 8;  // [tile][lower, upper]
    const int i_row = i_place / 2 * kTileRows + i_quad + i_place % 2 * kMmaPairs;
    const std::int64_t row = stored_row(args, i_row_block, i_row);
    if (row >= 0) {
      reinterpret_cast<uint16_t*>(p_item + kWordBytes)[threadIdx.x] =
          args.p_scale[row * num_groups + i_group];
    }
  }
  if (asymmetric && threadIdx.x < kMmaPairs) {
    uint32_t* p_zeros =
        reinterpret_cast<uint32_t*>(p_item + kWordBytes + kScaleBytes) + threadIdx.x;
    uint32_t zeros = *p_zeros;
    for (int i_place = 0; i_place < 8; ++i_place) {
      const int i_row = i_place / 2 * kTileRows + threadIdx.x + i_place % 2 * kMmaPairs;
      const std::int64_t row = stored_row(args, i_row_block, i_row);
      if (row >= 0) {
        const uint32_t stored = args.p_zero_point[row / kCodesPerWord * num_groups + i_group];
        const uint32_t zero = stored >> (row % kCodesPerWord * 4) & 0xfu;
        zeros = (zeros & ~(0xfu << (4 * i_place))) | zero << (4 * i_place);
      }
    }
    *p_zeros = zeros;
  }
}

}  // namespace

Status w4_pack(const W4PackParams& params, void* stream) {
  const std::int64_t groups = params.k / kGroup;
  const std::int64_t items = (params.items_rows + kItemRows - 1) / kItemRows * groups;
  if (items < 1 || items > (std::int64_t{1} << 31) - 1) {
    return kSizeOutOfRange;
  }
  const DeviceGuard guard(params.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  const KernelArgs args = {static_cast<const uint32_t*>(params.packed),
                           static_cast<const uint16_t*>(params.scale),
                           static_cast<const uint32_t*>(params.zero_point),
                           static_cast<unsigned char*>(params.items),
                           params.n,
                           params.first_row,
                           static_cast<int>(groups),
                           params.part};
  return launch(w4_pack_kernel, dim3(static_cast<unsigned>(items)), dim3(kThreads), stream, args);
}

}  // namespace bytebound
