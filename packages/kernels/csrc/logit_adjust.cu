// Logit adjustments: every block takes one slice of 2048 ids of one row through shared memory.
//
//   load the slice | add the bias of ids in it | penalise each id | mask ids in it | store the
//   slice
//                  ^ barrier                   ^ barrier          ^ barrier        ^ barrier
//
// The lists are short, so every block reads them whole and keeps what falls into its slice.
#include "logit_adjust.h"

#include "cuda/chunk.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"
#include "cuda/select.cuh"

namespace bytebound {
namespace {

constexpr std::int64_t kMaxRows = 32;
constexpr std::int64_t kMaxN = std::int64_t{1} << 30;
constexpr std::int64_t kMaxList = std::int64_t{1} << 30;
constexpr int kPart = kSearchThreads * kChunk;  // ids of one block
// Far above any logit and far below the float32 limit: penalties saturate here.
constexpr double kLogitBound = 1e30;

// logit_adjust.h with 32-bit sizes.
struct KernelArgs {
  const float* p_logits;
  float* p_out;
  const double* p_settings;
  const std::uint8_t* p_seen;
  const std::int32_t* p_counts;
  const std::int32_t* p_generated;
  const std::int32_t* p_drafts;
  const std::int32_t* p_bias_ids;
  const float* p_bias_values;
  const std::int32_t* p_banned_ids;
  const std::int32_t* p_end_ids;
  std::int64_t row_stride;
  std::int64_t out_row_stride;
  int n;
  int num_bias;
  int num_banned;
  int num_end;
  bool allow_minus_infinity;
};

struct Penalties {
  double repetition;
  double presence;  // rounded to float32, as a product with float32 flags is
  float frequency;
};

// Comparisons instead of fmin and fmax: those would turn NaN into a bound.
__device__ __forceinline__ float bounded(double value) {
  value = value > kLogitBound ? kLogitBound : value;
  value = value < -kLogitBound ? -kLogitBound : value;
  return static_cast<float>(value);
}

__device__ __forceinline__ float penalise(float logit,
                                          bool is_seen,
                                          int count,
                                          const Penalties& penalties) {
  double wide = logit;
  if (is_seen) {
    wide =
        wide > 0.0 ? __ddiv_rn(wide, penalties.repetition) : __dmul_rn(wide, penalties.repetition);
  }
  wide = __dsub_rn(wide, count > 0 ? penalties.presence : 0.0);
  wide = __dsub_rn(wide, __fmul_rn(static_cast<float>(count), penalties.frequency));
  return bounded(wide);
}

// -infinity at the ids of a list that lie in this slice. NaN stays, so that it is not hidden.
__device__ __forceinline__ void mask_ids(
    float (&slice)[kPart], const std::int32_t* p_ids, int num_ids, int i_slice, int n) {
  for (int i = threadIdx.x; i < num_ids; i += kSearchThreads) {
    const int id = p_ids[i];
    const int i_inside = id - i_slice;
    if (id >= 0 && id < n && i_inside >= 0 && i_inside < kPart && !isnan(slice[i_inside])) {
      slice[i_inside] = __uint_as_float(0xff800000u);
    }
  }
}

template <bool kVector>
__global__ void __launch_bounds__(kSearchThreads) logit_adjust_kernel(KernelArgs args) {
  __shared__ float slice[kPart];
  allow_next_kernel();
  wait_for_previous_kernel();
  const int i_row = blockIdx.y;
  const int i_slice = blockIdx.x * kPart;
  const int o_thread = threadIdx.x * kChunk;
  const int i_first = i_slice + o_thread;

  float b_value[kChunk];
  load_chunk<kVector>(args.p_logits + i_row * args.row_stride, i_first, args.n, b_value);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const bool allowed = isfinite(b_value[j]) ||
                         (args.allow_minus_infinity && isinf(b_value[j]) && b_value[j] < 0.0f);
    slice[o_thread + j] = allowed ? b_value[j] : __uint_as_float(0x7fc00000u);  // NaN
  }
  __syncthreads();
  for (int i = threadIdx.x; i < args.num_bias; i += kSearchThreads) {
    const int id = args.p_bias_ids[i];
    const int i_inside = id - i_slice;
    if (id >= 0 && id < args.n && i_inside >= 0 && i_inside < kPart) {
      slice[i_inside] = __fadd_rn(slice[i_inside], args.p_bias_values[i]);
    }
  }
  __syncthreads();

  const double frequency = args.p_settings[kAdjustFrequency];
  const double presence = args.p_settings[kAdjustPresence];
  const Penalties penalties = {args.p_settings[kAdjustRepetition],
                               static_cast<double>(static_cast<float>(presence)),
                               static_cast<float>(frequency)};
  const bool repeats = penalties.repetition != 1.0;
  const bool counts_matter = presence != 0.0 || frequency != 0.0;
  if (repeats || counts_matter) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const int id = i_first + j;
      if (id < args.n) {
        bool is_seen = args.p_seen != nullptr && args.p_seen[id] != 0;
        int count = args.p_counts != nullptr ? args.p_counts[id] : 0;
        if (args.p_drafts != nullptr) {
          for (int i = 0; i < i_row; ++i) {
            const bool is_draft = args.p_drafts[i] == id;
            is_seen = is_seen || is_draft;
            count += is_draft ? 1 : 0;
          }
        }
        slice[o_thread + j] =
            penalise(slice[o_thread + j], is_seen && repeats, counts_matter ? count : 0, penalties);
      }
    }
  }
  __syncthreads();
  mask_ids(slice, args.p_banned_ids, args.num_banned, i_slice, args.n);
  __syncthreads();  // an id may be in both lists
  const int generated = args.p_generated != nullptr ? *args.p_generated : 0;
  if (static_cast<double>(generated) + i_row < args.p_settings[kAdjustMinTokens]) {
    mask_ids(slice, args.p_end_ids, args.num_end, i_slice, args.n);
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b_value[j] = slice[o_thread + j];
  }
  store_chunk<kVector>(args.p_out + i_row * args.out_row_stride, i_first, args.n, b_value);
}

bool is_vector(const float* p_first, std::int64_t row_stride, std::int64_t rows) {
  return reinterpret_cast<std::uintptr_t>(p_first) % kAccessBytes == 0 &&
         (rows == 1 || row_stride * sizeof(float) % kAccessBytes == 0);
}

}  // namespace

Status logit_adjust(const LogitAdjustParams& p, void* stream) {
  if (p.rows < 0 || p.rows > kMaxRows || p.n < 1 || p.n > kMaxN || p.num_bias > kMaxList ||
      p.num_banned > kMaxList || p.num_end > kMaxList) {
    return kSizeOutOfRange;
  }
  if (p.rows == 0) {
    return kOk;
  }
  const DeviceGuard guard(p.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  const KernelArgs args = {p.logits,
                           p.out,
                           p.settings,
                           p.seen,
                           p.counts,
                           p.generated,
                           p.drafts,
                           p.bias_ids,
                           p.bias_values,
                           p.banned_ids,
                           p.end_ids,
                           p.row_stride,
                           p.out_row_stride,
                           static_cast<int>(p.n),
                           static_cast<int>(p.num_bias),
                           static_cast<int>(p.num_banned),
                           static_cast<int>(p.num_end),
                           p.allow_minus_infinity};
  const bool vector =
      is_vector(p.logits, p.row_stride, p.rows) && is_vector(p.out, p.out_row_stride, p.rows);
  const auto kernel = vector ? logit_adjust_kernel<true> : logit_adjust_kernel<false>;
  const dim3 grid(static_cast<unsigned>((p.n + kPart - 1) / kPart), static_cast<unsigned>(p.rows));
  LaunchOptions options;
  options.overlap_previous = true;
  return launch_with(options, kernel, grid, dim3(kSearchThreads), stream, args);
}

}  // namespace bytebound
