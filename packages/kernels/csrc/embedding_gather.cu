// Embedding gather: one chunk of 8 elements per thread, 128 chunks of one row per block.
//
//   blockIdx.x = t, the row of the result;  blockIdx.y = which 1024 elements of it
//
// A copy of D elements per row, behind the latency of reading the id.
#include "embedding_gather.h"

#include "cuda/chunk.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"

namespace bytebound {
namespace {

constexpr int kThreads = 128;
constexpr int kPart = kThreads * kChunk;                        // elements of one block
constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;  // the limit of gridDim.x
constexpr std::int64_t kMaxD = std::int64_t{1} << 24;           // keeps gridDim.y below its limit

template <typename T, typename O>
struct KernelArgs {
  const std::int32_t* p_ids;
  const T* p_table;
  O* p_out;
  std::int64_t table_row_stride;  // in elements
  std::int64_t out_row_stride;    // in elements
  int n;
  int d;
};

template <typename T, typename O, bool kVector>
__global__ void __launch_bounds__(kThreads) embedding_gather_kernel(KernelArgs<T, O> args) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int i_first = blockIdx.y * kPart + threadIdx.x * kChunk;
  if (i_first >= args.d) {
    return;
  }
  const int id = args.p_ids[blockIdx.x];
  float b_row[kChunk];
  if (id >= 0 && id < args.n) {
    load_chunk<kVector>(args.p_table + id * args.table_row_stride, i_first, args.d, b_row);
  } else {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      b_row[j] = __uint_as_float(0x7fc00000u);  // NaN
    }
  }
  store_chunk<kVector>(args.p_out + blockIdx.x * args.out_row_stride, i_first, args.d, b_row);
}

template <typename T>
bool is_vector(const void* p_first, std::int64_t row_stride) {
  return reinterpret_cast<std::uintptr_t>(p_first) % kAccessBytes == 0 &&
         row_stride * sizeof(T) % kAccessBytes == 0;
}

template <typename T, typename O>
Status run(const EmbeddingGatherParams& p, void* stream) {
  const KernelArgs<T, O> args = {p.ids,
                                 static_cast<const T*>(p.table),
                                 static_cast<O*>(p.out),
                                 p.table_row_stride,
                                 p.out_row_stride,
                                 static_cast<int>(p.n),
                                 static_cast<int>(p.d)};
  const bool vector = is_vector<T>(p.table, p.table_row_stride) &&
                      is_vector<O>(p.out, p.rows == 1 ? 0 : p.out_row_stride);
  const auto kernel =
      vector ? embedding_gather_kernel<T, O, true> : embedding_gather_kernel<T, O, false>;
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>((p.d + kPart - 1) / kPart));
  LaunchOptions options;
  options.overlap_previous = true;
  return launch_with(options, kernel, grid, dim3(kThreads), stream, args);
}

}  // namespace

Status embedding_gather(const EmbeddingGatherParams& params, void* stream) {
  if (params.rows < 0 || params.rows > kMaxRows || params.n < 1 || params.n > kMaxRows ||
      params.d < 1 || params.d > kMaxD) {
    return kSizeOutOfRange;
  }
  if (params.rows == 0) {
    return kOk;
  }
  const DeviceGuard guard(params.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  const bool to_float = params.out_dtype == DType::kFloat32;
  if (!to_float && params.out_dtype != params.table_dtype) {
    return kNotInstantiated;
  }
  switch (params.table_dtype) {
    case DType::kFloat16:
      return to_float ? run<__half, float>(params, stream) : run<__half, __half>(params, stream);
    case DType::kBFloat16:
      return to_float ? run<__nv_bfloat16, float>(params, stream)
                      : run<__nv_bfloat16, __nv_bfloat16>(params, stream);
    default:
      return kNotInstantiated;
  }
}

}  // namespace bytebound
