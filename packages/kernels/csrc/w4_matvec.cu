// Four-bit matrix times a few vectors. The work is shared out as cuda/matvec.cuh says.
//
// Four rows cost little more than one: the tensor core multiplies eight columns in any case, two
// for each row (cuda/digits.cuh), and the time goes into reading the weights.
#include "w4_matvec.h"

#include "cuda/beside.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/matvec.cuh"
#include "cuda/w4.cuh"

namespace bytebound {
namespace {

// Two blocks share a multiprocessor: sixteen warps have about 60 KiB of weights under way. A number
// of rows has a kernel of its own, since rows that may be absent would be worked on one after the
// other; a row has the same bits in each.
template <typename T, bool kAsymmetric, int kNumRows>
__global__ void __launch_bounds__(kMatvecThreads, 2)
    w4_matvec_kernel(const MatvecTask<typename W4Weights<T, kAsymmetric, kNumRows>::Source> task) {
  matvec_block<W4Weights<T, kAsymmetric, kNumRows>>(task);
}

// A kernel of its own, so that the others are not compiled around what few launches need.
template <typename T, bool kAsymmetric, int kNumRows>
__global__ void __launch_bounds__(kMatvecThreads, 2) w4_matvec_beside_kernel(
    const MatvecTask<typename W4Weights<T, kAsymmetric, kNumRows>::Source> task,
    const BesideTask beside) {
  const int i_beside = static_cast<int>(blockIdx.x + beside.num_blocks - gridDim.x);
  if (i_beside >= 0) {
    beside_block<T, kNumRows>(beside, static_cast<const T*>(task.p_x), task.x_row_stride, i_beside);
    return;
  }
  matvec_block<W4Weights<T, kAsymmetric, kNumRows>>(task);
}

static_assert(kBesideRowFloats * sizeof(float) <=
              matvec_shared_bytes<W4Weights<__half, false, 1>>(1));

// Dynamic and static; what two blocks take is what a step's kernels divide a multiprocessor for.
static_assert(
    shared_of_blocks(2,
                     matvec_shared_bytes<W4Weights<__half, false, kMatvecRows>>(kMatvecRows) +
                         kMatvecWarps * sizeof(WarpShare) + sizeof(Seams)) <= kSharedPerSm);

template <typename T, bool kAsymmetric, int kNumRows>
Status run_rows(const W4MatvecParams& p, void* stream) {
  using Weights = W4Weights<T, kAsymmetric, kNumRows>;
  if (p.rows < kNumRows) {
    return run_rows<T, kAsymmetric, (kNumRows > 1 ? kNumRows - 1 : 1)>(p, stream);
  }
  const typename Weights::Source source = {static_cast<const unsigned char*>(p.weight),
                                           p.scale_dtype == DType::kBFloat16};
  LaunchOptions options;
  options.overlap_previous = true;
  options.shared_bytes = matvec_shared_bytes<Weights>(kNumRows);
  const auto task = matvec_task<Weights>(source, p);
  dim3 grid = matvec_grid(task);
  const dim3 block(kMatvecThreads);
  if (p.beside.weight == nullptr) {
    return launch_with(options, w4_matvec_kernel<T, kAsymmetric, kNumRows>, grid, block, stream,
                       task);
  }
  const BesideTask beside = {p.beside.weight,
                             p.beside.out,
                             p.beside.weight_row_stride,
                             p.beside.out_row_stride,
                             static_cast<int>(p.beside.n),
                             static_cast<int>(p.k),
                             p.beside.num_blocks};
  grid.x += static_cast<unsigned>(beside.num_blocks);
  return launch_with(options, w4_matvec_beside_kernel<T, kAsymmetric, kNumRows>, grid, block,
                     stream, task, beside);
}

// Up to eight rows at a time: a row's bits do not depend on the others.
template <typename T, bool kAsymmetric>
Status run(const W4MatvecParams& all, void* stream) {
  W4MatvecParams p = all;
  for (std::int64_t i_row = 0; i_row < all.rows; i_row += p.rows) {
    p.rows = all.rows - i_row < kMatvecRows ? all.rows - i_row : kMatvecRows;
    const Status status = run_rows<T, kAsymmetric, kMatvecRows>(p, stream);
    if (status != kOk) {
      return status;
    }
    skip_rows(p, p.rows);
    p.beside.out = static_cast<T*>(p.beside.out) + p.rows * p.beside.out_row_stride;
  }
  return kOk;
}

}  // namespace

Status w4_matvec(const W4MatvecParams& params, void* stream) {
  if (params.beside.weight != nullptr && (params.beside.n < 1 || params.beside.n > kMaxBesideN ||
                                          params.k > kMaxBesideK || params.beside.num_blocks < 1)) {
    return kSizeOutOfRange;
  }
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
