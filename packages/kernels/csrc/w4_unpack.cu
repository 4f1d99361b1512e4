// Unpacks four-bit weights: a warp takes one tile of 16 rows by 128 columns, four warps an item.
//
// A lane decodes 32 adjacent columns of two rows, 64 bytes of each. Lanes 2 i and 2 i + 1 swap half
// of them, so that what the two store together is 32 adjacent bytes, one sector of memory:
//
//   decoded   lane 2 i: 0 1 2 3   lane 2 i + 1: 4 5 6 7      (chunks of 16 bytes)
//   stored    lane 2 i: 0 2 4 6   lane 2 i + 1: 1 3 5 7
//
// The time goes into writing, four times as many bytes as are read.
#include "w4_unpack.h"

#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"
#include "cuda/w4.cuh"

namespace bytebound {
namespace {

constexpr int kThreads = 256;
constexpr int kTiles = kThreads / kWarp;  // of a block
constexpr int kLaneChunks = 4;            // of 16 bytes, of one row

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

__device__ __forceinline__ uint4 swap_with_neighbour(const uint4& v) {
  return make_uint4(__shfl_xor_sync(kAllLanes, v.x, 1), __shfl_xor_sync(kAllLanes, v.y, 1),
                    __shfl_xor_sync(kAllLanes, v.z, 1), __shfl_xor_sync(kAllLanes, v.w, 1));
}

// Stores one lane's 32 columns of a row together with its neighbour; every lane of the warp calls.
__device__ __forceinline__ void store_row(const uint4 (&chunks)[kLaneChunks],
                                          char* p_columns,
                                          bool exists,
                                          bool odd) {
  const uint4 low = swap_with_neighbour(odd ? chunks[0] : chunks[1]);
  const uint4 high = swap_with_neighbour(odd ? chunks[2] : chunks[3]);
  if (exists) {
    auto* p = reinterpret_cast<uint4*>(p_columns) + (odd ? 1 : 0);
    p[0] = odd ? low : chunks[0];
    p[2] = odd ? high : chunks[2];
    p[4] = odd ? chunks[1] : low;
    p[6] = odd ? chunks[3] : high;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) w4_unpack_kernel(const Task task) {
  const int i_lane = threadIdx.x % kWarp;
  const int i_quad = i_lane / 4;
  const int i_all = blockIdx.x * kTiles + threadIdx.x / kWarp;
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
  const uint32_t scale_bits = load_streamed_word(p_item + kWordBytes + i_quad * 16 + i_tile * 4);
  uint32_t zeros = 0x88888888u;
  if (task.asymmetric) {
    zeros = load_streamed_word(p_item + kWordBytes + kScaleBytes + i_quad * 4);
  }
  zeros >>= 8 * i_tile;
  float scales[2];
  unpack_scales(scale_bits, task.bfloat16_scales, scales[0], scales[1]);
  allow_next_kernel();
  wait_for_previous_kernel();

  const bool odd = i_lane % 2 == 1;
  const int i_column = i_group * kGroup + i_lane % 4 / 2 * 64;
#pragma unroll
  for (int i_half = 0; i_half < 2; ++i_half) {  // rows i_quad and i_quad + 8
    const float magic_zero = kMagic + static_cast<float>(zeros >> (4 * i_half) & 15u);
    uint4 chunks[kLaneChunks];
#pragma unroll
    for (int j = 0; j < kLaneChunks; ++j) {
      const uint32_t first = word_of(words[j / 2], j % 2 * 2) >> (4 * i_half);
      const uint32_t second = word_of(words[j / 2], j % 2 * 2 + 1) >> (4 * i_half);
      unpack_four<T>(first, magic_zero, scales[i_half], chunks[j].x, chunks[j].y);
      unpack_four<T>(second, magic_zero, scales[i_half], chunks[j].z, chunks[j].w);
    }
    int i_row;
    bool exists;
    if (task.interleaved) {
      const int i_feature = i_row_block * (kItemRows / 2) + i_tile * (kTileRows / 2) + i_quad;
      exists = i_feature < task.n;
      i_row = i_half * task.n + i_feature;
    } else {
      i_row = i_row_block * kItemRows + i_tile * kTileRows + i_half * 8 + i_quad;
      exists = i_row < task.n;
    }
    T* p_row = static_cast<T*>(task.p_out) + i_row * task.out_row_stride + i_column;
    store_row(chunks, reinterpret_cast<char*>(p_row), exists, odd);
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
