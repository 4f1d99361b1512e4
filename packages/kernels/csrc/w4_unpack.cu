// Unpacks four-bit weights: a warp takes one tile of 16 rows by 128 columns, four warps an item.
//
// The tile is turned in shared memory while it is still packed, 1 KiB per warp:
//
//   loaded   lane 4 q + t: words 0 .. 7 of columns 32 t .. 32 t + 31, both rows in each word
//   stored   for q = 0 .. 7:  lanes 0 .. 15: row q, lanes 16 .. 31: row q + 8,
//                             8 columns each: 256 adjacent bytes per row
//
// So every store fills whole lines of memory. The time goes into writing, four times as many bytes
// as are read.
#include "w4_unpack.h"

#include "cuda/chunk.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"
#include "cuda/w4.cuh"

namespace bytebound {
namespace {

constexpr int kThreads = 256;
constexpr int kTiles = kThreads / kWarp;  // of a block
constexpr int kQuads = 8;                 // pairs of rows of a tile
constexpr int kTileBytes = kTileRows * kGroup / 2;

struct Task {
  const unsigned char* p_items;
  void* p_out;
  std::int64_t out_row_stride;
  int n;
  int num_groups;
  int num_tiles;  // over all groups
  bool asymmetric;
  bool bfloat16_scales;
  bool interleaved;
};

__device__ __forceinline__ uint32_t round_pair(float a, float b, __half /* type */) {
  const __half2 pair = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ uint32_t round_pair(float a, float b, __nv_bfloat16 /* type */) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The low bits of 2^23 + q are q: subtracting 2^23 + zero is exact, and so is the product, which
// has at most 16 significant bits.
constexpr uint32_t kMagicBits = 0x4b000000u;
constexpr float kMagic = 8388608.0f;

// Four columns of one row, from a word whose bits 0, 16, 8, 24 are theirs.
template <typename T>
__device__ __forceinline__ void unpack_four(
    uint32_t word, float magic_zero, float scale, uint32_t& first, uint32_t& second) {
  float v[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t code = word >> (j % 2 * 16 + j / 2 * 8) & 15u;
    v[j] = (__uint_as_float(kMagicBits | code) - magic_zero) * scale;
  }
  first = round_pair(v[0], v[1], T());
  second = round_pair(v[2], v[3], T());
}

template <typename T>
__global__ void __launch_bounds__(kThreads) w4_unpack_kernel(const Task task) {
  __shared__ uint4 shared[kTiles][kTileBytes / sizeof(uint4)];
  const int i_lane = threadIdx.x % kWarp;
  const int i_warp = threadIdx.x / kWarp;
  const int i_all = blockIdx.x * kTiles + i_warp;
  if (i_all >= task.num_tiles) {
    allow_next_kernel();
    wait_for_previous_kernel();
    return;
  }
  const int i_item = i_all / kItemTiles;
  const int i_tile = i_all % kItemTiles;
  const int i_row_block = i_item / task.num_groups;
  const int i_group = i_item - i_row_block * task.num_groups;
  const unsigned char* p_item =
      task.p_items + static_cast<std::int64_t>(i_item) * item_bytes(task.asymmetric);

  uint4 words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    words[i] = load_streamed(p_item + (2 * i_tile + i) * 512 + i_lane * 16);
  }
  // Scale and zero point of the row that the lane stores in turn i_lane % 8.
  const int i_half = i_lane / 16;
  const int i_own = i_lane % kQuads;
  const uint32_t scale_bits = load_streamed_word(p_item + kWordBytes + i_own * 16 + i_tile * 4);
  uint32_t zeros = 0x88888888u;
  if (task.asymmetric) {
    zeros = load_streamed_word(p_item + kWordBytes + kScaleBytes + i_own * 4);
  }
  float lower;
  float upper;
  unpack_scales(scale_bits, task.bfloat16_scales, lower, upper);
  const float own_scale = i_half == 0 ? lower : upper;
  const float own_zero = kMagic + static_cast<float>(zeros >> (8 * i_tile + 4 * i_half) & 15u);

  uint4* p_words = shared[i_warp];
  p_words[2 * i_lane] = words[0];
  p_words[2 * i_lane + 1] = words[1];
  __syncwarp();

  int i_row;  // of out, stored in turn 0
  int num_rows;
  if (task.interleaved) {
    const int i_feature = i_row_block * (kItemRows / 2) + i_tile * (kTileRows / 2);
    i_row = i_half * task.n + i_feature;
    num_rows = task.n - i_feature;
  } else {
    i_row = i_row_block * kItemRows + i_tile * kTileRows + i_half * kQuads;
    num_rows = task.n - i_row;
  }
  constexpr int kColumns = kAccessBytes / sizeof(T);
  T* p_out = static_cast<T*>(task.p_out) + i_row * task.out_row_stride + i_group * kGroup +
             i_lane % 16 * kColumns;
  const auto* p_pairs = reinterpret_cast<const uint2*>(p_words) + i_lane % 16;
  allow_next_kernel();
  wait_for_previous_kernel();

#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const float scale = __shfl_sync(kAllLanes, own_scale, i_half * 16 + q);
    const float zero = __shfl_sync(kAllLanes, own_zero, i_half * 16 + q);
    const uint2 pair = p_pairs[q * 16];
    uint4 columns;
    unpack_four<T>(pair.x >> (4 * i_half), zero, scale, columns.x, columns.y);
    unpack_four<T>(pair.y >> (4 * i_half), zero, scale, columns.z, columns.w);
    if (q < num_rows) {
      *reinterpret_cast<uint4*>(p_out) = columns;
    }
    p_out += task.out_row_stride;
  }
}

}  // namespace

Status w4_unpack(const W4UnpackParams& p, void* stream) {
  constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;
  if (p.n < 1 || p.n > kMaxSize || p.k < kGroup || p.k > kMaxSize || p.k % kGroup != 0) {
    return kSizeOutOfRange;
  }
  const std::int64_t packed_rows = p.interleaved ? 2 * p.n : p.n;
  const std::int64_t groups = p.k / kGroup;
  const std::int64_t tiles = (packed_rows + kItemRows - 1) / kItemRows * kItemTiles * groups;
  if (tiles > 0x7fffffff - kTiles) {
    return kSizeOutOfRange;
  }
  const Task task = {static_cast<const unsigned char*>(p.weight),
                     p.out,
                     p.out_row_stride,
                     static_cast<int>(p.n),
                     static_cast<int>(groups),
                     static_cast<int>(tiles),
                     p.asymmetric,
                     p.scale_dtype == DType::kBFloat16,
                     p.interleaved};
  const DeviceGuard guard(p.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  LaunchOptions options;
  options.overlap_previous = true;
  const dim3 grid(static_cast<unsigned>((tiles + kTiles - 1) / kTiles));
  switch (p.out_dtype) {
    case DType::kFloat16:
      return launch_with(options, w4_unpack_kernel<__half>, grid, dim3(kThreads), stream, task);
    case DType::kBFloat16:
      return launch_with(options, w4_unpack_kernel<__nv_bfloat16>, grid, dim3(kThreads), stream,
                         task);
    default:
      return kNotInstantiated;
  }
}

}  // namespace bytebound
