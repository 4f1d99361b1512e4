// 16-bit matrix times a few vectors. The work is shared out as cuda/matvec.cuh says, in items of
// 16 rows by 128 columns (cuda/dense.cuh), or by 64 where K is no multiple of 128.
//
// One row costs what eight cost: the tensor core multiplies eight columns in any case, and the time
// goes into reading the weights.
#include "dense_matvec.h"

#include "cuda/dense.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/matvec.cuh"

namespace bytebound {
namespace {

// Two blocks share a multiprocessor: sixteen warps have 64 KiB of weights under way.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kMatvecThreads, 2)
    dense_matvec_kernel(const MatvecTask<typename DenseWeights<T, kColumns>::Source> task) {
  matvec_block<DenseWeights<T, kColumns>>(task);
}

// As many rows at a time as one mma takes: a row's bits do not depend on the others.
template <typename T, int kColumns>
Status run(const DenseMatvecParams& all, void* stream) {
  using Weights = DenseWeights<T, kColumns>;
  const bool two = all.epilogue == MatvecEpilogue::kSwiGlu;
  typename Weights::Source source = {};
  source.p_lower = static_cast<const T*>(all.weight);
  source.p_upper = static_cast<const T*>(two ? all.up : all.weight);
  source.lower_stride = all.weight_row_stride;
  source.upper_stride = two ? all.up_row_stride : all.weight_row_stride;
  source.n = static_cast<int>(all.n);
  source.item_rows = two ? Weights::kRows / 2 : Weights::kRows;
  DenseMatvecParams p = all;
  for (std::int64_t i_row = 0; i_row < all.rows; i_row += p.rows) {
    p.rows = all.rows - i_row < kMatvecRows ? all.rows - i_row : kMatvecRows;
    LaunchOptions options;
    options.overlap_previous = true;
    options.shared_bytes = matvec_shared_bytes<Weights>(p.rows);
    const auto task = matvec_task<Weights>(source, p);
    const Status status = launch_with(options, dense_matvec_kernel<T, kColumns>, matvec_grid(task),
                                      dim3(kMatvecThreads), stream, task);
    if (status != kOk) {
      return status;
    }
    skip_rows(p, p.rows);
  }
  return kOk;
}

template <typename T>
Status run_for_columns(const DenseMatvecParams& params, void* stream) {
  return params.k % 128 == 0 ? run<T, 128>(params, stream) : run<T, 64>(params, stream);
}

}  // namespace

Status dense_matvec(const DenseMatvecParams& params, void* stream) {
  if (params.k % 64 != 0) {
    return kSizeOutOfRange;
  }
  const DeviceGuard guard(params.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  switch (params.x_dtype) {
    case DType::kFloat16:
      return run_for_columns<__half>(params, stream);
    case DType::kBFloat16:
      return run_for_columns<__nv_bfloat16>(params, stream);
    default:
      return kNotInstantiated;
  }
}

}  // namespace bytebound
