// Argmax: every block takes one slice of one row, and the last block of a row to finish answers.
//
//             slice 0        slice 1              slice B-1
//   row 0  [ 2048 values ][ 2048 values ]  ...  [ the rest ]     B = ceil(N / 2048) blocks
//   row 1  [ 2048 values ][ 2048 values ]  ...  [ the rest ]     B blocks
//
// A thread looks at one chunk of 8 values. Value and index travel as one integer (select.cuh),
// whose maximum does not depend on the order of the blocks. One read of the row and two atomics per
// block.
#include "argmax.h"

#include "cuda/chunk.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/select.cuh"

namespace bytebound {
namespace {

constexpr int kSlice = kSearchThreads * kChunk;  // values of one block
constexpr std::int64_t kMaxRows = 65535;         // the limit of gridDim.y
constexpr std::int64_t kMaxN = std::int64_t{1} << 30;

struct RowState {
  Candidate best;
  unsigned num_done;
  unsigned unused;
};

template <typename T>
struct KernelArgs {
  const T* p_logits;
  const std::int32_t* p_id_map;
  std::int32_t* p_out;
  RowState* p_states;
  std::int64_t row_stride;  // in elements
  int n;
};

template <typename T, bool kVector>
__global__ void __launch_bounds__(kSearchThreads) argmax_kernel(KernelArgs<T> args) {
  __shared__ Candidate warp_best[kSearchThreads / kWarp];
  allow_next_kernel();
  wait_for_previous_kernel();

  const T* p_row = args.p_logits + blockIdx.y * args.row_stride;
  const int i_first = blockIdx.x * kSlice + threadIdx.x * kChunk;
  float b_value[kChunk];
  load_chunk<kVector>(p_row, i_first, args.n, b_value);
  Candidate best = kNoCandidate;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    if (i_first + j < args.n) {
      best = greater(best, candidate(b_value[j], i_first + j));
    }
  }
  best = block_max(best, warp_best);
  if (threadIdx.x != 0) {
    return;
  }

  RowState* p_state = args.p_states + blockIdx.y;
  atomicMax(&p_state->best, best);
  __threadfence();
  if (atomicInc(&p_state->num_done, gridDim.x - 1) != gridDim.x - 1) {
    return;
  }
  __threadfence();
  best = atomicExch(&p_state->best, kNoCandidate);
  int id = -1;
  if (best != kNanCandidate) {
    const int index = candidate_index(best);
    id = args.p_id_map == nullptr ? index : args.p_id_map[index];
  }
  args.p_out[blockIdx.y] = id;
}

template <typename T>
Status run(const ArgmaxParams& p, void* stream) {
  const KernelArgs<T> args = {
      static_cast<const T*>(p.logits),     p.id_map,     p.out,
      static_cast<RowState*>(p.workspace), p.row_stride, static_cast<int>(p.n)};
  const bool vector = reinterpret_cast<std::uintptr_t>(p.logits) % kAccessBytes == 0 &&
                      (p.rows == 1 || p.row_stride * sizeof(T) % kAccessBytes == 0);
  const auto kernel = vector ? argmax_kernel<T, true> : argmax_kernel<T, false>;
  const dim3 grid(static_cast<unsigned>((p.n + kSlice - 1) / kSlice),
                  static_cast<unsigned>(p.rows));
  LaunchOptions options;
  options.overlap_previous = true;
  return launch_with(options, kernel, grid, dim3(kSearchThreads), stream, args);
}

}  // namespace

std::int64_t argmax_workspace_bytes(std::int64_t rows) {
  return rows * static_cast<std::int64_t>(sizeof(RowState));
}

Status argmax(const ArgmaxParams& params, void* stream) {
  if (params.rows < 0 || params.rows > kMaxRows || params.n < 1 || params.n > kMaxN) {
    return kSizeOutOfRange;
  }
  if (params.rows == 0) {
    return kOk;
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
    case DType::kFloat32:
      return run<float>(params, stream);
    default:
      return kNotInstantiated;
  }
}

}  // namespace bytebound
