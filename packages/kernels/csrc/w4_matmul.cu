// Four-bit matrix times many rows. A tile is 128 weight rows by kColumns activation rows; its work
// is one unit per group of 128 columns. Units are numbered tile by tile and every block takes an
// equal share of that list, so no multiprocessor waits for a last round of tiles:
//
//            groups ->
//   tile 0   | block 0 | block 0 | block 0 | block 1 |
//   tile 1   | block 1 | block 1 | block 2 | block 2 |
//
// A tile that several blocks share is written by the block that has its end; the others send it
// their sums through the workspace. A block begins with the sums that it sends and ends with the
// ones that it waits for, so that nobody waits; it waits for blocks of lower index only. Sums are
// added in ascending order: same shape, same bits.
//
// Copies run ahead by kStages - 1 units. A warp has 32 weight rows: it decodes a fragment once for
// all of its activation rows, as whole numbers q - zero, and applies the scale to the sums of a
// group. At 128 x 128 it is limited by the tensor cores, below about 40 rows by the memory.
#include "w4_matmul.h"

#include "cuda/async_copy.cuh"
#include "cuda/chunk.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/dynamic_shared.cuh"
#include "cuda/gpu_scope.cuh"
#include "cuda/launch.h"
#include "cuda/matvec.cuh"
#include "cuda/w4_signed.cuh"

namespace bytebound {
namespace {

constexpr int kItems = 2;  // row blocks of a tile
constexpr int kRows = kItems * kItemRows;
constexpr int kWarpTiles = 2;  // of 16 weight rows, of a warp
constexpr int kWarpRows = kWarpTiles * kTileRows;
constexpr int kRowWarps = kRows / kWarpRows;  // warps along the weight rows
constexpr int kXRowBytes = kGroup * 2;        // one activation row of a unit
constexpr int kXRowChunks = kXRowBytes / 16;
constexpr int kPartPitch = kWarpRows + 4;                 // floats: no bank meets twice
constexpr int kPartBytes = kMmaColumns * kPartPitch * 4;  // of a warp, to turn sums into rows
constexpr int kMaxItemBytes = item_bytes(true);

// kN: mma columns (8 activation rows each) of a warp; kColumnWarps: warps along them.
template <int kN_, int kColumnWarps_, int kStages_, int kBlocksPerSm_>
struct Shape {
  static constexpr int kN = kN_;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kWarps = kRowWarps * kColumnWarps_;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kColumns = kN * kMmaColumns * kColumnWarps_;  // activation rows of a tile
  static constexpr int kXBytes = kColumns * kXRowBytes;
  static constexpr int kStageBytes = kXBytes + kItems * kMaxItemBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kWarps * kPartBytes;
  static_assert(kSharedBytes <= 96 << 10, "must fit every supported architecture");
  static_assert(kBlocksPerSm * kRows * kColumns * 4 <= kMatmulPartBytes, "workspace");
  static_assert(kBlocksPerSm <= kMatmulBlocksPerSm, "workspace");
};

using Narrow = Shape<4, 1, 4, 3>;  // up to 32 rows
using Middle = Shape<8, 1, 3, 2>;  // up to 64 rows
using Wide = Shape<8, 2, 2, 1>;

struct Task {
  const unsigned char* p_items;
  const void* p_x;
  void* p_out;
  const void* p_residual;
  float4* p_parts;  // [block][part][thread]
  int* p_flags;     // [block]: 0 as long as a part waits to be taken, else -1
  std::int64_t x_row_stride;
  std::int64_t out_row_stride;
  std::int64_t residual_row_stride;
  int num_rows;        // M
  int n;               // output features
  int num_groups;      // units of a tile
  int num_row_blocks;  // items along the rows
  int num_columns;     // tiles along the activation rows
  int num_units;
  bool asymmetric;
  bool bfloat16_scales;
  bool float_out;
  bool vector;  // rows of out and residual are 16-byte aligned
  MatvecEpilogue epilogue;
  float scale;
};

// The units of one block, in the order in which it takes them: first the beginning of a tile that
// another block ends, then whole tiles, last the end of a tile that another block began.
class Units {
 public:
  __device__ __forceinline__ Units(const Task& task)
      : num_units_(task.num_units), num_groups_(task.num_groups) {
    start_ = start_of(blockIdx.x);
    const int end = start_of(blockIdx.x + 1);
    count_ = end - start_;
    const int first = start_ / num_groups_;
    const int last = (end - 1) / num_groups_;
    if (first == last) {
      tail_ = whole_ = start_;
      num_tail_ = num_ahead_ = count_;
    } else {
      tail_ = end / num_groups_ * num_groups_;
      whole_ = (start_ + num_groups_ - 1) / num_groups_ * num_groups_;
      num_tail_ = end - tail_;
      num_ahead_ = count_ - (whole_ - start_);
    }
  }

  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ int at(int i) const {
    return i < num_tail_    ? tail_ + i
           : i < num_ahead_ ? whole_ + i - num_tail_
                            : start_ + i - num_ahead_;
  }
  // The first unit of a block.
  __device__ __forceinline__ int start_of(unsigned i_block) const {
    return static_cast<int>(static_cast<std::int64_t>(num_units_) * i_block / gridDim.x);
  }

 private:
  int num_units_;
  int num_groups_;
  int start_;
  int count_;
  int tail_;   // first unit of the last tile, if that is another block's to end
  int whole_;  // first unit of the first tile that begins here
  int num_tail_;
  int num_ahead_;  // units before those of the tile that another block began
};

__device__ __forceinline__ void take_flag(int* p) {
  int value;
  do {
    value = load_acquire(p);
  } while (value != 0);
  *p = -1;
}

// Where a unit lies. Divisions are slow, so a copy goes on from the unit before where it can.
struct Place {
  int unit;
  int i_group;
  int i_row_block;  // the first of the tile
  int i_column;     // the first activation row of the tile

  template <typename S>
  __device__ __forceinline__ void go_to(const Task& task, int next) {
    if (next == unit + 1 && i_group + 1 < task.num_groups) {
      ++i_group;
    } else {
      const int i_tile = next / task.num_groups;
      const int i_rows = i_tile / task.num_columns;
      i_group = next - i_tile * task.num_groups;
      i_row_block = i_rows * kItems;
      i_column = (i_tile - i_rows * task.num_columns) * S::kColumns;
    }
    unit = next;
  }
};

template <typename S>
__device__ __forceinline__ void copy_weights(const Task& task, const Place& place, char* p_stage) {
  constexpr int kChunks = kWordBytes / 16;
  constexpr int kParameterThreads = 16;  // of an item
  static_assert(kChunks % S::kThreads == 0, "every thread copies equally many words");
  static_assert((kMaxItemBytes - kWordBytes) / 16 <= kParameterThreads, "one chunk each");
  static_assert(kItems * kParameterThreads <= S::kThreads, "one chunk each");
  const int bytes = item_bytes(task.asymmetric);
  const uint32_t to = shared_address(p_stage + S::kXBytes);
  const std::int64_t row_bytes = static_cast<std::int64_t>(task.num_groups) * bytes;
  const unsigned char* p_first = task.p_items + place.i_row_block * row_bytes +
                                 static_cast<std::int64_t>(place.i_group) * bytes;
  const int num_items = min(task.num_row_blocks - place.i_row_block, kItems);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const bool exists = i < num_items;
    const unsigned char* p_item = p_first + (exists ? i * row_bytes : 0);
#pragma unroll
    for (int j = 0; j < kChunks; j += S::kThreads) {
      const int o = (j + static_cast<int>(threadIdx.x)) * 16;
      async_copy_16(to + i * kMaxItemBytes + o, p_item + o, exists ? 16 : 0);
    }
  }
  const int i = threadIdx.x / kParameterThreads;
  const int o = kWordBytes + static_cast<int>(threadIdx.x) % kParameterThreads * 16;
  if (i < kItems && o < bytes) {
    const bool exists = i < num_items;
    async_copy_16(to + i * kMaxItemBytes + o, p_first + (exists ? i * row_bytes : 0) + o,
                  exists ? 16 : 0);
  }
}

// A row's sixteen chunks lie transposed as [4 of a lane][4 lanes], odd rows with bit 2 flipped:
// eight lanes that read together (two rows, four lanes of a quad) then meet eight different banks.
template <typename S, typename T>
__device__ __forceinline__ void copy_activations(const Task& task,
                                                 const Place& place,
                                                 char* p_stage) {
  const int i_first = threadIdx.x / kXRowChunks;
  const int i_slot = threadIdx.x % kXRowChunks;
  const int turned = i_slot ^ (i_first % 2 * 4);
  const int i_chunk = turned % 4 * 4 + turned / 4;
  constexpr int kStep = S::kThreads / kXRowChunks;
  static_assert(kStep % 2 == 0, "a thread's rows are all even or all odd");
  static_assert(S::kColumns % kStep == 0, "every thread copies equally many rows");
  const T* p_x = static_cast<const T*>(task.p_x);
  const T* p_row =
      p_x + (place.i_column + i_first) * task.x_row_stride + place.i_group * kGroup + i_chunk * 8;
  const uint32_t to = shared_address(p_stage) + i_first * kXRowBytes + i_slot * 16;
  const int num_rows = task.num_rows - place.i_column - i_first;  // from this thread's first on
#pragma unroll
  for (int i = 0; i < S::kColumns; i += kStep) {
    const bool exists = i < num_rows;
    async_copy_16(to + i * kXRowBytes, exists ? p_row : p_x, exists ? 16 : 0);
    p_row += kStep * task.x_row_stride;
  }
}

template <typename S>
using Sums = float[kWarpTiles][S::kN][4];

// sums += the product of one unit. Calls copy_next() once the tensor cores have work.
template <typename S, typename T, typename CopyNext>
__device__ __forceinline__ void multiply(const Task& task,
                                         const char* p_stage,
                                         const CopyNext& copy_next,
                                         Sums<S>& sums) {
  const int i_lane = threadIdx.x % kWarp;
  const int i_warp = threadIdx.x / kWarp;
  const int i_quad = i_lane / 4;
  const int i_half = i_warp % kRowWarps % 2;  // of the item
  const char* p_item = p_stage + S::kXBytes + i_warp % kRowWarps / 2 * kMaxItemBytes;
  const char* p_words = p_item + i_half * (kWordBytes / 2) + i_lane * 16;
  const char* p_x =
      p_stage + (i_warp / kRowWarps * S::kN * kMmaColumns + i_quad) * kXRowBytes + i_lane % 4 * 16;
  const int odd = i_quad % 2 * 64;

  const auto scales =
      *reinterpret_cast<const uint2*>(p_item + kWordBytes + i_quad * 16 + i_half * 8);
  uint32_t zeros = 0x88888888u;
  if (task.asymmetric) {
    zeros = *reinterpret_cast<const uint32_t*>(p_item + kWordBytes + kScaleBytes + i_quad * 4);
  }
  zeros >>= 16 * i_half;
  uint32_t minus_lower[kWarpTiles];
  uint32_t minus_upper[kWarpTiles];
#pragma unroll
  for (int t = 0; t < kWarpTiles; ++t) {
    minus_lower[t] = W4Signed<T>::lower(zeros >> (8 * t) & 15u);
    minus_upper[t] = W4Signed<T>::upper(zeros >> (8 * t + 4) & 15u);
  }

  float c[kWarpTiles][S::kN][4] = {};
  uint4 words[kWarpTiles];
#pragma unroll
  for (int i_two = 0; i_two < kItemSteps / 2; ++i_two) {  // two steps share a chunk of x
    uint32_t a[kWarpTiles][2][4];
#pragma unroll
    for (int t = 0; t < kWarpTiles; ++t) {
      if (i_two % 2 == 0) {
        words[t] = *reinterpret_cast<const uint4*>(p_words + t * 1024 + i_two / 2 * 512);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        W4Codec<T>::decode(word_of(words[t], i_two % 2 * 2 + j), a[t][j]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[t][j][i] = W4Signed<T>::add(a[t][j][i], i % 2 == 0 ? minus_lower[t] : minus_upper[t]);
        }
      }
    }
    const char* p_chunk = p_x + (i_two % 2 == 0 ? odd : 64 - odd) + i_two / 2 * 128;
#pragma unroll
    for (int i_n = 0; i_n < S::kN; ++i_n) {
      const uint4 v = *reinterpret_cast<const uint4*>(p_chunk + i_n * kMmaColumns * kXRowBytes);
      const uint32_t b[2][2] = {{v.x, v.y}, {v.z, v.w}};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int t = 0; t < kWarpTiles; ++t) {
          mma_m16n8k16(c[t][i_n], a[t][j], b[j], T());
        }
      }
    }
    if (i_two == 0) {
      copy_next();
    }
  }
#pragma unroll
  for (int t = 0; t < kWarpTiles; ++t) {
    float lower;
    float upper;
    unpack_scales(t == 0 ? scales.x : scales.y, task.bfloat16_scales, lower, upper);
#pragma unroll
    for (int i_n = 0; i_n < S::kN; ++i_n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[t][i_n][i] = fmaf(i < 2 ? lower : upper, c[t][i_n][i], sums[t][i_n][i]);
      }
    }
  }
}

template <typename S>
__device__ __forceinline__ float4* part_of(const Task& task, int i_block) {
  return task.p_parts + static_cast<std::int64_t>(i_block) * (kRows * S::kColumns / 4) +
         threadIdx.x;
}

template <typename S>
__device__ __forceinline__ void send_part(const Task& task, const Sums<S>& sums) {
  float4* p = part_of<S>(task, blockIdx.x);
#pragma unroll
  for (int t = 0; t < kWarpTiles; ++t) {
#pragma unroll
    for (int i_n = 0; i_n < S::kN; ++i_n) {
      const float (&s)[4] = sums[t][i_n];
      p[(t * S::kN + i_n) * S::kThreads] = make_float4(s[0], s[1], s[2], s[3]);
    }
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    store_release_zero(task.p_flags + blockIdx.x);
  }
}

// sums = what the blocks before this one have of its tile, in their order, + sums.
template <typename S>
__device__ __forceinline__ void add_parts(const Task& task,
                                          const Units& units,
                                          int first_unit,
                                          Sums<S>& sums) {
  const int end = blockIdx.x;
  int begin = end - 1;
  while (units.start_of(begin) > first_unit) {
    --begin;
  }
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += S::kThreads) {
    take_flag(task.p_flags + i);
  }
  __syncthreads();
#pragma unroll
  for (int t = 0; t < kWarpTiles; ++t) {
#pragma unroll
    for (int i_n = 0; i_n < S::kN; ++i_n) {
      float before[4] = {};
#pragma unroll 1
      for (int i = begin; i < end; ++i) {
        const float4 part = __ldcg(part_of<S>(task, i) + (t * S::kN + i_n) * S::kThreads);
        before[0] += part.x;
        before[1] += part.y;
        before[2] += part.z;
        before[3] += part.w;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[t][i_n][j] = before[j] + sums[t][i_n][j];
      }
    }
  }
}

template <bool kVector, typename Out>
__device__ __forceinline__ void put_chunk(const Task& task,
                                          int i_row,
                                          int i_feature,
                                          float (&b)[kChunk]) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b[j] = __fmul_rn(b[j], task.scale);  // no fma with what comes next, in any instance
  }
  if (task.epilogue == MatvecEpilogue::kAddResidual) {
    const auto* p_row = static_cast<const Out*>(task.p_residual) + i_row * task.residual_row_stride;
    float b_residual[kChunk];
    load_chunk<kVector>(p_row, i_feature, task.n, b_residual);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      b[j] = __fadd_rn(b[j], b_residual[j]);
    }
  }
  store_chunk<kVector>(static_cast<Out*>(task.p_out) + i_row * task.out_row_stride, i_feature,
                       task.n, b);
}

// Sums lie with the weight rows across the lanes; out wants them along a row. Each warp turns its
// own, eight activation rows at a time.
template <typename S, typename T>
__device__ __forceinline__ void put_tile(const Task& task,
                                         int i_tile,
                                         float* p_part,
                                         const Sums<S>& sums) {
  const int i_lane = threadIdx.x % kWarp;
  const int i_warp = threadIdx.x / kWarp;
  const bool swiglu = task.epilogue == MatvecEpilogue::kSwiGlu;
  const int warp_features = swiglu ? kWarpRows / 2 : kWarpRows;
  const int row_lanes = warp_features / kChunk;  // lanes that write one row
  const int i_row = i_lane / row_lanes;
  const int o_feature = i_lane % row_lanes * kChunk;
  const int i_feature =
      (i_tile / task.num_columns * kRowWarps + i_warp % kRowWarps) * warp_features + o_feature;
  const int i_column =
      i_tile % task.num_columns * S::kColumns + i_warp / kRowWarps * S::kN * kMmaColumns + i_row;
  float* p_to = p_part + i_lane % 4 * 2 * kPartPitch + i_lane / 4;
  const float* p_from = p_part + i_row * kPartPitch + o_feature;
#pragma unroll
  for (int i_n = 0; i_n < S::kN; ++i_n) {
#pragma unroll
    for (int t = 0; t < kWarpTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float lower = sums[t][i_n][j] * W4Codec<T>::kFactor;
        const float upper = sums[t][i_n][j + 2] * W4Codec<T>::kFactorUpper;
        float* p = p_to + j * kPartPitch;
        if (swiglu) {
          p[t * 8] = silu(lower) * upper;
        } else {
          p[t * 16] = lower;
          p[t * 16 + 8] = upper;
        }
      }
    }
    __syncwarp();
    const int i_out = i_column + i_n * kMmaColumns;
    if (i_row < kMmaColumns && i_out < task.num_rows && i_feature < task.n) {
      const float4 low = *reinterpret_cast<const float4*>(p_from);
      const float4 high = *reinterpret_cast<const float4*>(p_from + 4);
      float b[kChunk] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      if (task.float_out) {
        task.vector ? put_chunk<true, float>(task, i_out, i_feature, b)
                    : put_chunk<false, float>(task, i_out, i_feature, b);
      } else {
        task.vector ? put_chunk<true, T>(task, i_out, i_feature, b)
                    : put_chunk<false, T>(task, i_out, i_feature, b);
      }
    }
    __syncwarp();
  }
}

template <typename S, typename T>
__global__ void __launch_bounds__(S::kThreads, S::kBlocksPerSm) w4_matmul_kernel(const Task task) {
  BYTEBOUND_DYNAMIC_SHARED(__align__(16) char, shared);
  float* p_part = reinterpret_cast<float*>(shared + S::kStages * S::kStageBytes +
                                           threadIdx.x / kWarp * kPartBytes);
  const Units units(task);
  const int count = units.count();

  // Weights are constant; activations may be what the previous kernel is still writing.
  Place place = {-2, 0, 0, 0};
#pragma unroll 1
  for (int i = 0; i < S::kStages - 1 && i < count; ++i) {
    place.go_to<S>(task, units.at(i));
    copy_weights<S>(task, place, shared + i * S::kStageBytes);
  }
  allow_next_kernel();
  wait_for_previous_kernel();
#pragma unroll 1
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (i < count) {
      place.go_to<S>(task, units.at(i));
      copy_activations<S, T>(task, place, shared + i * S::kStageBytes);
    }
    async_copy_commit();
  }

  Sums<S> sums = {};
  int i_stage = 0;
  int i_next_stage = S::kStages - 1;
  int unit = units.at(0);
  int i_tile = unit / task.num_groups;
  int begin = unit;  // of the part of a tile that is being summed up
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    async_copy_wait_but<S::kStages - 2>();
    __syncthreads();
    const auto copy_next = [&] {
      if (i + S::kStages - 1 < count) {
        place.go_to<S>(task, units.at(i + S::kStages - 1));
        char* p_stage = shared + i_next_stage * S::kStageBytes;
        copy_weights<S>(task, place, p_stage);
        copy_activations<S, T>(task, place, p_stage);
      }
      async_copy_commit();
    };
    multiply<S, T>(task, shared + i_stage * S::kStageBytes, copy_next, sums);
    i_stage = i_stage + 1 == S::kStages ? 0 : i_stage + 1;
    i_next_stage = i_next_stage + 1 == S::kStages ? 0 : i_next_stage + 1;

    const int next_unit = i + 1 < count ? units.at(i + 1) : -1;
    const int first = i_tile * task.num_groups;
    if (next_unit == unit + 1 && next_unit < first + task.num_groups) {
      unit = next_unit;
      continue;
    }
    if (unit + 1 == first + task.num_groups) {
      if (begin > first) {
        add_parts<S>(task, units, first, sums);
      }
      put_tile<S, T>(task, i_tile, p_part, sums);
    } else {
      send_part<S>(task, sums);
    }
#pragma unroll
    for (int t = 0; t < kWarpTiles; ++t) {
#pragma unroll
      for (int i_n = 0; i_n < S::kN; ++i_n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sums[t][i_n][j] = 0.0f;
        }
      }
    }
    unit = next_unit;
    begin = next_unit;
    i_tile = next_unit / task.num_groups;
  }
}

bool is_vector(const void* p_first, std::int64_t row_stride, bool float_out) {
  return reinterpret_cast<std::uintptr_t>(p_first) % kAccessBytes == 0 &&
         row_stride * (float_out ? 4 : 2) % kAccessBytes == 0;
}

template <typename S, typename T>
Status run(const W4MatmulParams& p, void* stream) {
  const bool swiglu = p.epilogue == MatvecEpilogue::kSwiGlu;
  const std::int64_t row_blocks = ((swiglu ? 2 * p.n : p.n) + kItemRows - 1) / kItemRows;
  const std::int64_t columns = (p.rows + S::kColumns - 1) / S::kColumns;
  const std::int64_t groups = p.k / kGroup;
  const std::int64_t units = (row_blocks + kItems - 1) / kItems * columns * groups;
  const std::int64_t most = std::int64_t{p.num_sms} * S::kBlocksPerSm;
  if (units > 0x7fffffff) {
    return kSizeOutOfRange;
  }
  Task task = {};
  task.p_items = static_cast<const unsigned char*>(p.weight);
  task.p_x = p.x;
  task.p_out = p.out;
  task.p_residual = p.residual;
  task.p_flags = static_cast<int*>(p.workspace);
  task.p_parts =
      reinterpret_cast<float4*>(task.p_flags + std::int64_t{kMatmulBlocksPerSm} * p.num_sms);
  task.x_row_stride = p.x_row_stride;
  task.out_row_stride = p.out_row_stride;
  task.residual_row_stride = p.residual_row_stride;
  task.num_rows = static_cast<int>(p.rows);
  task.n = static_cast<int>(p.n);
  task.num_groups = static_cast<int>(groups);
  task.num_row_blocks = static_cast<int>(row_blocks);
  task.num_columns = static_cast<int>(columns);
  task.num_units = static_cast<int>(units);
  task.asymmetric = p.asymmetric;
  task.bfloat16_scales = p.scale_dtype == DType::kBFloat16;
  task.float_out = p.float_out;
  task.vector = is_vector(p.out, p.out_row_stride, p.float_out) &&
                (p.epilogue != MatvecEpilogue::kAddResidual ||
                 is_vector(p.residual, p.residual_row_stride, p.float_out));
  task.epilogue = p.epilogue;
  task.scale = p.scale;
  LaunchOptions options;
  options.overlap_previous = true;
  options.shared_bytes = S::kSharedBytes;
  options.shared_per_sm = shared_of_blocks(S::kBlocksPerSm, S::kSharedBytes);
  const dim3 grid(static_cast<unsigned>(units < most ? units : most));
  return launch_with(options, w4_matmul_kernel<S, T>, grid, dim3(S::kThreads), stream, task);
}

template <typename T>
Status choose(const W4MatmulParams& p, void* stream) {
  return p.rows <= Narrow::kColumns   ? run<Narrow, T>(p, stream)
         : p.rows <= Middle::kColumns ? run<Middle, T>(p, stream)
                                      : run<Wide, T>(p, stream);
}

}  // namespace

Status w4_matmul(const W4MatmulParams& params, void* stream) {
  constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;
  if (params.rows < 0 || params.rows > kMaxSize || params.n < 1 || params.n > kMaxSize ||
      params.k < kGroup || params.k > kMaxSize || params.k % kGroup != 0 || params.num_sms < 1) {
    return kSizeOutOfRange;
  }
  if (params.rows == 0) {
    return kOk;
  }
  const DeviceGuard guard(params.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  switch (params.x_dtype) {
    case DType::kFloat16:
      return choose<__half>(params, stream);
    case DType::kBFloat16:
      return choose<__nv_bfloat16>(params, stream);
    default:
      return kNotInstantiated;
  }
}

}  // namespace bytebound
