// Four-bit matrix times a few vectors. The work is shared out as cuda/matvec.cuh says.
//
// One row costs what eight cost: the tensor core multiplies eight columns in any case, and the time
// goes into reading the weights.
#include "w4_matvec.h"

#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/matvec.cuh"
#include "cuda/w4.cuh"

namespace bytebound {
namespace {

// Two blocks share a multiprocessor: sixteen warps have about 60 KiB of weights under way.
template <typename T, bool kAsymmetric>
__global__ void __launch_bounds__(kMatvecThreads, 2)
    w4_matvec_kernel(const MatvecTask<typename W4Weights<T, kAsymmetric>::Source> task) {
  matvec_block<W4Weights<T, kAsymmetric>>(task);
}

// As many rows at a time as one mma takes: a row's bits do not depend on the others.
template <typename T, bool kAsymmetric>
Status run(const W4MatvecParams& all, void* stream) {
  using Weights = W4Weights<T, kAsymmetric>;
  const typename Weights::Source source = {static_cast<const unsigned char*>(all.weight),
                                           all.scale_dtype == DType::kBFloat16};
  W4MatvecParams p = all;
  for (std::int64_t i_row = 0; i_row < all.rows; i_row += p.rows) {
    p.rows = all.rows - i_row < kMatvecRows ? all.rows - i_row : kMatvecRows;
    LaunchOptions options;
    options.overlap_previous = true;
    options.shared_bytes = matvec_shared_bytes<Weights>(p.rows);
    const Status status =
        launch_with(options, w4_matvec_kernel<T, kAsymmetric>, dim3(p.num_blocks),
                    dim3(kMatvecThreads), stream, matvec_task<Weights>(source, p));
    if (status != kOk) {
      return status;
    }
    skip_rows(p, p.rows);
  }
  return kOk;
}

}  // namespace

Status w4_matvec(const W4MatvecParams& params, void* stream) {
  const DeviceGuard guard(params.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  switch (params.x_dtype) {
    case DType::kFloat16:
      return params.asymmetric ? run<__half, true>(params, stream)
                               : run<__half, false>(params, stream);
    case DType::kBFloat16:
      return params.asymmetric ? run<__nv_bfloat16, true>(params, stream)
                               : run<__nv_bfloat16, false>(params, stream);
    default:
      return kNotInstantiated;
  }
}

}  // namespace bytebound
