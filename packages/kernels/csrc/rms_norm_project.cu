// RMSNorm with "1 + w" and a small product of its result, without a second launch.
//
//               features ->
//   row 0   | block 0,0 | block 1,0 | ...      A block normalises one whole row, as cuda/rms.cuh
//   row 1   | block 0,1 | block 1,1 | ...      does it, for 1, 2 or 4 features: as few as there
//   ...                                        are blocks for. Blocks 0,r also write the row.
//
// A row is read and normalised again in every block, which takes less time than to hand it over
// from one launch to the next: what is added to the norm is one more sum over the block. The
// weights are in registers before the previous kernel ends.
#include "rms_norm_project.h"

#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/rms.cuh"
#include "cuda/streamed.cuh"

namespace bytebound {
namespace {

constexpr std::int64_t kMaxD = std::int64_t{1} << 30;  // element indices are 32-bit
constexpr std::int64_t kColumns = 64;                  // D is a multiple of it: chunks are whole
constexpr std::int64_t kBlocks = 128;                  // about one for each multiprocessor

// Four features go into rows of up to this many threads, and two such blocks share a
// multiprocessor.
constexpr int kFourFeaturesThreads = 640;

template <typename T>
struct KernelArgs {
  const float* p_x;
  const float* p_weight;
  const T* p_projection;
  T* p_out;
  T* p_projected;
  std::int64_t x_row_stride;           // in elements
  std::int64_t projection_row_stride;  // in elements
  std::int64_t out_row_stride;         // in elements
  std::int64_t projected_row_stride;   // in elements
  int n;
  int d;
  float eps;
};

// The chunk at column i of a row, and 0 beyond its d elements.
__device__ __forceinline__ void load_floats(const float* p_row,
                                            int i,
                                            int d,
                                            float (&b_out)[kChunk]) {
  if (i < d) {
    load_whole_chunk(p_row + i, b_out);
    return;
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b_out[j] = 0.0f;
  }
}

// The same of a feature's row. Beyond the matrix it is the last row once more, whose products are
// not stored.
template <typename T>
__device__ __forceinline__ uint4 load_weights(const KernelArgs<T>& args, int i_feature, int i) {
  const T* p_row = args.p_projection + min(i_feature, args.n - 1) * args.projection_row_stride;
  return i < args.d ? load_streamed(p_row + i) : make_uint4(0, 0, 0, 0);
}

template <typename T>
__device__ __forceinline__ void round_to(float (&b_y)[kChunk]) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b_y[j] = to_float(from_float<T>(b_y[j]));
  }
}

template <typename T>
__device__ __forceinline__ float add_products(float sum,
                                              const float (&b_y)[kChunk],
                                              const uint4& bits) {
  const auto& b_weights = reinterpret_cast<const Pack<T>&>(bits);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    sum = fmaf(b_y[j], to_float(b_weights.v[j]), sum);
  }
  return sum;
}

// kLong: a thread has more chunks than its first, which alone is in registers.
template <typename T, int kFeatures, bool kLong>
__global__ void __launch_bounds__(kFeatures < 4 ? kMaxBlockThreads : kFourFeaturesThreads,
                                  kFeatures < 4 ? 1 : 2)
    rms_norm_project_kernel(const KernelArgs<T> args) {
  __shared__ float warp_products[kFeatures][kMaxBlockThreads / kWarp];
  const int i_lane = threadIdx.x % kWarp;
  const int i_warp = threadIdx.x / kWarp;
  const int num_warps = blockDim.x / kWarp;
  const int i_first_feature = blockIdx.x * kFeatures;
  const float* p_x = args.p_x + blockIdx.y * args.x_row_stride;
  T* p_out = args.p_out + blockIdx.y * args.out_row_stride;
  const int d = args.d;
  const int i_first = threadIdx.x * kChunk;  // in elements
  const int step = blockDim.x * kChunk;      // in elements
  const bool writes_row = blockIdx.x == 0;

  float b_x[kChunk];
  float b_weight[kChunk];
  uint4 b_weights[kFeatures];
#pragma unroll
  for (int f = 0; f < kFeatures; ++f) {
    b_weights[f] = load_weights(args, i_first_feature + f, i_first);
  }
  load_floats(args.p_weight, i_first, d, b_weight);
  allow_next_kernel();
  wait_for_previous_kernel();
  load_floats(p_x, i_first, d, b_x);

  float sum = add_squares(0.0f, b_x);
#pragma unroll 1
  for (int i = i_first + step; kLong && i < d; i += step) {
    float b_more[kChunk];
    load_floats(p_x, i, d, b_more);
    sum = add_squares(sum, b_more);
  }
  const float factor = inverse_rms(block_sum_once(sum), d, args.eps);

  normalise(b_x, b_weight, factor);
  round_to<T>(b_x);
  if (writes_row && i_first < d) {
    store_whole_chunk(p_out + i_first, b_x);
  }
  float sums[kFeatures];
#pragma unroll
  for (int f = 0; f < kFeatures; ++f) {
    sums[f] = add_products<T>(0.0f, b_x, b_weights[f]);
  }
#pragma unroll 1
  for (int i = i_first + step; kLong && i < d; i += step) {
    load_floats(p_x, i, d, b_x);
    load_floats(args.p_weight, i, d, b_weight);
    normalise(b_x, b_weight, factor);
    round_to<T>(b_x);
    if (writes_row) {
      store_whole_chunk(p_out + i, b_x);
    }
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) {
      sums[f] = add_products<T>(sums[f], b_x, load_weights(args, i_first_feature + f, i));
    }
  }

  const float warp_product = warp_sums(sums);
  if (i_lane % (kWarp / kFeatures) == 0) {
    warp_products[i_lane / (kWarp / kFeatures)][i_warp] = warp_product;
  }
  __syncthreads();
  for (int f = i_warp; f < kFeatures; f += num_warps) {
    const float product = warp_sum(i_lane < num_warps ? warp_products[f][i_lane] : 0.0f);
    if (i_lane == 0 && i_first_feature + f < args.n) {
      args.p_projected[blockIdx.y * args.projected_row_stride + i_first_feature + f] =
          from_float<T>(product);
    }
  }
}

template <typename T, int kFeatures, bool kLong>
Status launch_for(const KernelArgs<T>& args, std::int64_t rows, void* stream) {
  const dim3 grid(static_cast<unsigned>((args.n + kFeatures - 1) / kFeatures),
                  static_cast<unsigned>(rows));
  const dim3 block(rms_threads(args.d));
  LaunchOptions options;
  options.overlap_previous = true;
  return launch_with(options, rms_norm_project_kernel<T, kFeatures, kLong>, grid, block, stream,
                     args);
}

template <typename T>
Status run(const RmsNormProjectParams& p, void* stream) {
  const KernelArgs<T> args = {p.x,
                              p.weight,
                              static_cast<const T*>(p.projection),
                              static_cast<T*>(p.out),
                              static_cast<T*>(p.projected),
                              p.x_row_stride,
                              p.projection_row_stride,
                              p.out_row_stride,
                              p.projected_row_stride,
                              static_cast<int>(p.n),
                              static_cast<int>(p.d),
                              p.eps};
  if (p.d > kChunk * kMaxBlockThreads) {
    return launch_for<T, 2, true>(args, p.rows, stream);
  }
  // As few features to a block as there are blocks for: no bit depends on it.
  const std::int64_t products = p.n * p.rows;
  if (products <= kBlocks) {
    return launch_for<T, 1, false>(args, p.rows, stream);
  }
  if (products <= 2 * kBlocks || rms_threads(p.d) > kFourFeaturesThreads) {
    return launch_for<T, 2, false>(args, p.rows, stream);
  }
  return launch_for<T, 4, false>(args, p.rows, stream);
}

}  // namespace

Status rms_norm_project(const RmsNormProjectParams& params, void* stream) {
  if (params.rows < 1 || params.rows > kMaxProjectRows || params.n < 1 ||
      params.n > kMaxProjectFeatures || params.d < kColumns || params.d > kMaxD ||
      params.d % kColumns != 0) {
    return kSizeOutOfRange;
  }
  const DeviceGuard guard(params.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  switch (params.dtype) {
    case DType::kFloat16:
      return run<__half>(params, stream);
    case DType::kBFloat16:
      return run<__nv_bfloat16>(params, stream);
    default:
      return kNotInstantiated;
  }
}

}  // namespace bytebound
