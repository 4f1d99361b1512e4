// RMSNorm with "1 + w": one block per row, as cuda/rms.cuh shares it out, so a row never meets
// another row. The price: at T = 1 a single multiprocessor works, and the kernel takes as long as
// two memory latencies.
#include "rms_norm.h"

#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/rms.cuh"

namespace bytebound {
namespace {

constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;  // the limit of gridDim.x
constexpr std::int64_t kMaxD = std::int64_t{1} << 30;           // element indices are 32-bit

template <typename T, typename W, typename O>
struct KernelArgs {
  const T* p_x;
  const W* p_weight;
  O* p_out;
  std::int64_t x_row_stride;    // in elements
  std::int64_t out_row_stride;  // in elements
  int d;                        // in elements
  float eps;
};

template <typename T, typename W, typename O, bool kVector>
__global__ void __launch_bounds__(kMaxBlockThreads, 1) rms_norm_kernel(KernelArgs<T, W, O> args) {
  const T* p_x = args.p_x + blockIdx.x * args.x_row_stride;
  O* p_out = args.p_out + blockIdx.x * args.out_row_stride;
  const int d = args.d;
  const int i_first = threadIdx.x * kChunk;  // in elements
  const int step = blockDim.x * kChunk;      // in elements

  // The first chunk stays in registers, and its weights, which no kernel writes, are asked for
  // while the previous kernel still runs.
  float b_x[kChunk];
  float b_weight[kChunk];
  load_chunk<kVector>(args.p_weight, i_first, d, b_weight);
  allow_next_kernel();
  wait_for_previous_kernel();
  load_chunk<kVector>(p_x, i_first, d, b_x);

  float sum = add_squares(0.0f, b_x);
  for (int i = i_first + step; i < d; i += step) {
    float b_more[kChunk];
    load_chunk<kVector>(p_x, i, d, b_more);
    sum = add_squares(sum, b_more);
  }
  const float factor = inverse_rms(block_sum_once(sum), d, args.eps);

  normalise(b_x, b_weight, factor);
  store_chunk<kVector>(p_out, i_first, d, b_x);
  for (int i = i_first + step; i < d; i += step) {
    load_chunk<kVector>(p_x, i, d, b_x);
    load_chunk<kVector>(args.p_weight, i, d, b_weight);
    normalise(b_x, b_weight, factor);
    store_chunk<kVector>(p_out, i, d, b_x);
  }
}

template <typename T>
bool is_vector_row(const void* p_first, std::int64_t row_stride, std::int64_t rows) {
  const bool first = reinterpret_cast<std::uintptr_t>(p_first) % kAccessBytes == 0;
  const bool others = rows == 1 || row_stride * sizeof(T) % kAccessBytes == 0;
  return first && others;
}

template <typename T, typename W, typename O = T>
Status run(const RmsNormParams& p, void* stream) {
  const KernelArgs<T, W, O> args = {static_cast<const T*>(p.x),
                                    static_cast<const W*>(p.weight),
                                    static_cast<O*>(p.out),
                                    p.x_row_stride,
                                    p.out_row_stride,
                                    static_cast<int>(p.d),
                                    p.eps};
  const bool vector = is_vector_row<T>(p.x, p.x_row_stride, p.rows) &&
                      is_vector_row<O>(p.out, p.out_row_stride, p.rows) &&
                      is_vector_row<W>(p.weight, 0, 1);
  const auto kernel = vector ? rms_norm_kernel<T, W, O, true> : rms_norm_kernel<T, W, O, false>;
  const dim3 grid(static_cast<unsigned>(p.rows));
  const dim3 block(rms_threads(p.d));
  LaunchOptions options;
  options.overlap_previous = true;
  return launch_with(options, kernel, grid, block, stream, args);
}

}  // namespace

Status rms_norm(const RmsNormParams& params, void* stream) {
  if (params.rows < 0 || params.rows > kMaxRows || params.d < 1 || params.d > kMaxD) {
    return kSizeOutOfRange;
  }
  if (params.rows == 0) {
    return kOk;
  }
  const DeviceGuard guard(params.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  // The combinations that exist: float weights go with every type, others with their own; a result
  // is of the type of x or, of all floats, of a 16-bit type.
  const bool float_weight = params.weight_dtype == DType::kFloat32;
  if (!float_weight && params.weight_dtype != params.x_dtype) {
    return kNotInstantiated;
  }
  if (params.out_dtype != params.x_dtype) {
    if (params.x_dtype != DType::kFloat32 || !float_weight) {
      return kNotInstantiated;
    }
    switch (params.out_dtype) {
      case DType::kFloat16:
        return run<float, float, __half>(params, stream);
      case DType::kBFloat16:
        return run<float, float, __nv_bfloat16>(params, stream);
      default:
        return kNotInstantiated;
    }
  }
  switch (params.x_dtype) {
    case DType::kFloat16:
      return float_weight ? run<__half, float>(params, stream)
                          : run<__half, __half>(params, stream);
    case DType::kBFloat16:
      return float_weight ? run<__nv_bfloat16, float>(params, stream)
                          : run<__nv_bfloat16, __nv_bfloat16>(params, stream);
    case DType::kFloat32:
      return run<float, float>(params, stream);
    default:
      return kNotInstantiated;
  }
}

}  // namespace bytebound
