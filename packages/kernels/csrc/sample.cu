// Sampling: a few passes over the logits, every block one slice of 2048 ids, the last block
// decides.
//
//   start      the highest logit                                                        1 launch
//   select     top_k: a radix select on the order key of the logits, by counts          3 launches
//   select     top_p: the same, by sums of weights                                      3 launches
//   ties       which ids stay among those that are equal to the last logit kept         1 launch
//   draw       inverse CDF in id order (draw.cuh)                                       1 launch
//
// A select pass makes a histogram of one digit (11, 11, 10 bits) of the keys that agree with the
// digits known so far; the last block finds the digit in which the limit falls. Weights are added
// as whole multiples of 2^-60, so a sum over a bin is exact and needs no order. A pass that the
// settings do not ask for ends at once. The workspace is cleared by whoever read it last.
//
// The first kernel lets the next one start only after its own wait: whatever wrote the logits has
// then ended, so all others load them before they wait, past the L1.
#include "sample.h"

#include "cuda/chunk.cuh"
#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/draw.cuh"
#include "cuda/launch.h"
#include "cuda/philox.cuh"
#include "cuda/scan.cuh"

namespace bytebound {
namespace {

using Wide = unsigned long long;

constexpr std::int64_t kMaxRows = 65535;  // the limit of gridDim.y
constexpr int kBins = 2048;
constexpr int kLimbBits = 20;  // 2048 limbs add up below 2^32
constexpr Wide kLimbMask = (Wide{1} << kLimbBits) - 1;

static_assert(kBins == kSearchThreads * kChunk, "the last block looks at 8 bins per thread");

// An exact sum of weights: high in units of 2^-40, low in units of 2^-60.
struct Sum {
  Wide high;
  Wide low;
};

// The ids with a key above `key`, and of those with this very key the first `kept` of `count`.
struct Cut {
  unsigned key;
  unsigned kept;
  unsigned count;
};

struct RowState {
  Candidate best;     // 0 between calls
  unsigned num_done;  // 0 between calls
  int argmax;         // -1: the row cannot be drawn from
  double highest;
  unsigned prefix;     // the digits of the limit's key that are known
  unsigned remaining;  // top_k: how many ids to keep among those with this prefix
  Cut top_k;
  Cut cut;       // top_k and top_p together
  Sum above;     // the weights of all keys above the prefix
  double limit;  // top_p times the total
  int last_id;   // the last id kept among those with the key of the cut
};

struct Histogram {
  unsigned counts[kBins];
  Wide high[kBins];
  Wide low[kBins];
};

// A row's part of the workspace; the partial results of its slices follow.
struct RowSpace {
  RowState state;
  alignas(16) Histogram histogram;
};

static_assert(sizeof(RowSpace) == 96 + sizeof(Histogram), "ops/sample/op.py repeats the size");

struct KernelArgs {
  const float* p_logits;
  const double* p_settings;
  const std::int64_t* p_seed;
  const std::int32_t* p_position;
  std::int32_t* p_out;
  double* p_weights;
  double* p_totals;
  char* p_workspace;
  std::int64_t row_stride;       // in elements
  std::int64_t row_space_bytes;  // from one RowSpace to the next
  std::int64_t position_offset;
  int n;
  int purpose;
  bool is_vector;  // all rows are 16-byte aligned
};

__device__ __forceinline__ RowSpace* row_space(const KernelArgs& args) {
  return reinterpret_cast<RowSpace*>(args.p_workspace + blockIdx.y * args.row_space_bytes);
}

template <typename T>
__device__ __forceinline__ T* partials(RowSpace* p_space) {
  return reinterpret_cast<T*>(p_space + 1);
}

// What every block of a pass has to know, loaded side by side: the loads stand in front of a
// barrier for the compiler, or it would put each where its value is first needed.
struct Known {
  double temperature;
  double top_k;
  double top_p;
  double min_p;
  double highest;
  int argmax;
  int last_id;
  unsigned prefix;
  Cut top_k_cut;
  Cut cut;

  __device__ __forceinline__ bool draws() const { return argmax >= 0 && temperature > 0.0; }
};

__device__ __forceinline__ Known load_known(const KernelArgs& args, const RowState& state) {
  const Known known = {args.p_settings[kSampleTemperature],
                       args.p_settings[kSampleTopK],
                       args.p_settings[kSampleTopP],
                       args.p_settings[kSampleMinP],
                       state.highest,
                       state.argmax,
                       state.last_id,
                       state.prefix,
                       state.top_k,
                       state.cut};
  asm volatile("" ::: "memory");
  return known;
}

// A temperature above 0 and its reciprocal. Below 2^-1000 it is raised: logits that differ at all
// are then so far apart that it makes no difference, and the reciprocal stays finite.
struct Temperature {
  double value;
  double reciprocal;
};

__device__ __forceinline__ Temperature temperature_of(double setting) {
  const double value = fmax(setting, 0x1p-1000);
  return {value, __drcp_rn(value)};
}

// exp((logit - highest) / temperature). The quotient is corrected by its remainder, which rounds it
// as a division would, and without the branches of one: those of many weights overlap.
__device__ __forceinline__ double weight_of(float logit, double highest, Temperature temperature) {
  const double difference = static_cast<double>(logit) - highest;
  const double quotient = difference * temperature.reciprocal;
  const double remainder = fma(-quotient, temperature.value, difference);
  const double corrected = fma(remainder, temperature.reciprocal, quotient);
  return exp(quotient < -1000.0 ? quotient : corrected);  // 0 so far down, also at -infinity
}

__device__ __forceinline__ Sum to_sum(double weight) {
  const Wide units = __double2ull_rn(weight * 0x1p60);
  return {units >> kLimbBits, units & kLimbMask};
}

__device__ __forceinline__ Sum add(Sum a, Sum b) {
  return {a.high + b.high, a.low + b.low};
}

__device__ __forceinline__ double to_double(Sum sum) {
  const Wide high = sum.high + (sum.low >> kLimbBits);
  return static_cast<double>(high) * 0x1p-40 + static_cast<double>(sum.low & kLimbMask) * 0x1p-60;
}

// 0 beyond the row.
__device__ __forceinline__ void load_logits(const KernelArgs& args,
                                            int i_first,
                                            float (&b_logit)[kChunk]) {
  const float* p_first = args.p_logits + blockIdx.y * args.row_stride + i_first;
  if (args.is_vector && i_first + kChunk <= args.n) {
    const auto* p_four = reinterpret_cast<const float4*>(p_first);
    const float4 low = __ldcg(p_four);
    const float4 high = __ldcg(p_four + 1);
    b_logit[0] = low.x, b_logit[1] = low.y, b_logit[2] = low.z, b_logit[3] = low.w;
    b_logit[4] = high.x, b_logit[5] = high.y, b_logit[6] = high.z, b_logit[7] = high.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b_logit[j] = i_first + j < args.n ? __ldcg(p_first + j) : 0.0f;
  }
}

__global__ void __launch_bounds__(kSearchThreads) sample_start_kernel(KernelArgs args) {
  __shared__ Candidate shared_best[kSearchWarps];
  wait_for_previous_kernel();
  allow_next_kernel();
  const int i_first = blockIdx.x * kSlice + threadIdx.x * kChunk;
  float b_logit[kChunk];
  load_logits(args, i_first, b_logit);
  Candidate best = kNoCandidate;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    if (i_first + j < args.n) {
      best = greater(best, candidate(b_logit[j], i_first + j));
    }
  }
  best = block_max(best, shared_best);
  if (threadIdx.x != 0) {
    return;
  }
  RowState* p_state = &row_space(args)->state;
  atomicMax(&p_state->best, best);
  __threadfence();
  if (atomicInc(&p_state->num_done, gridDim.x - 1) != gridDim.x - 1) {
    return;
  }
  __threadfence();
  best = atomicExch(&p_state->best, kNoCandidate);
  const float highest =
      best == kNanCandidate ? __uint_as_float(0x7fc00000u) : key_value(candidate_key(best));
  p_state->argmax = isfinite(highest) ? candidate_index(best) : -1;
  p_state->highest = highest;
  p_state->prefix = 0;
  p_state->remaining = 0;
  p_state->top_k = {0, 0, 0};  // every key is above 0
  p_state->cut = {0, 0, 0};
  p_state->above = {0, 0};
  p_state->limit = 0.0;
  p_state->last_id = args.n - 1;
}

// What the last block of a pass sees of one bin.
struct Bin {
  unsigned count;
  Sum sum;
};

// Loads this thread's bins, all at once, and clears them.
template <bool kByWeight>
__device__ __forceinline__ void take_bins(Histogram& histogram, Bin (&b_bin)[kChunk]) {
  const unsigned i_lowest = kBins - kChunk * (threadIdx.x + 1);
  auto* p_counts = reinterpret_cast<uint4*>(histogram.counts + i_lowest);
  auto* p_high = reinterpret_cast<ulonglong2*>(histogram.high + i_lowest);
  auto* p_low = reinterpret_cast<ulonglong2*>(histogram.low + i_lowest);
  uint4 counts[kChunk / 4];
  ulonglong2 high[kChunk / 2] = {};
  ulonglong2 low[kChunk / 2] = {};
#pragma unroll
  for (int i = 0; i < kChunk / 4; ++i) {
    counts[i] = __ldcg(p_counts + i);
  }
  if (kByWeight) {
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) {
      high[i] = __ldcg(p_high + i);
      low[i] = __ldcg(p_low + i);
    }
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const int i = kChunk - 1 - j;  // the highest bin comes first
    const uint4 four = counts[i / 4];
    b_bin[j].count = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
    b_bin[j].sum = {i % 2 == 0 ? high[i / 2].x : high[i / 2].y,
                    i % 2 == 0 ? low[i / 2].x : low[i / 2].y};
  }
#pragma unroll
  for (int i = 0; i < kChunk / 4; ++i) {
    p_counts[i] = make_uint4(0, 0, 0, 0);
  }
  if (kByWeight) {
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) {
      p_high[i] = make_ulonglong2(0, 0);
      p_low[i] = make_ulonglong2(0, 0);
    }
  }
}

// In the last block: the digit in which the limit falls, from the highest bin down. Thread t holds
// the bins that come t * 8 to t * 8 + 7 in this order.
template <bool kByWeight, int kPass>
__device__ __forceinline__ void decide_digit(const KernelArgs& args,
                                             RowSpace* p_space,
                                             unsigned digit_bits,
                                             unsigned shift) {
  __shared__ unsigned shared_counts[kSearchWarps];
  __shared__ Wide shared_sums[2][kSearchWarps];
  constexpr bool kIsLast = kPass == 2;
  RowState* p_state = &p_space->state;
  const RowState state = *p_state;
  const Temperature temperature = temperature_of(args.p_settings[kSampleTemperature]);

  Bin b_bin[kChunk];
  take_bins<kByWeight>(p_space->histogram, b_bin);
  if (kByWeight) {
    // What top_k keeps of its last key is not in the histogram: these ids are equal, so their
    // number says all.
    const unsigned key = state.top_k.key;
    const bool known = kPass == 0 || (key >> shift) >> digit_bits == state.prefix;
    if (state.top_k.kept > 0 && known) {
      const unsigned kept = state.top_k.kept;
      const unsigned i_place = kBins - 1 - ((key >> shift) & ((1u << digit_bits) - 1));
      const Sum one = to_sum(weight_of(key_value(key), state.highest, temperature));
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        if (threadIdx.x * kChunk + j == i_place) {
          b_bin[j].count += kept;
          b_bin[j].sum = add(b_bin[j].sum, {one.high * kept, one.low * kept});
        }
      }
    }
  }
  Bin b_all = {0, {0, 0}};
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b_all.count += b_bin[j].count;
    b_all.sum = add(b_all.sum, b_bin[j].sum);
  }

  Sum before = state.above;
  double limit = state.limit;
  unsigned count_before = 0;
  unsigned remaining = state.remaining;
  if (kByWeight) {
    const BlockScan<Wide> high = block_scan(b_all.sum.high, shared_sums[0]);
    const BlockScan<Wide> low = block_scan(b_all.sum.low, shared_sums[1]);
    before = add(before, {high.before, low.before});
    if (kPass == 0) {
      limit = args.p_settings[kSampleTopP] * to_double({high.total, low.total});
    }
  } else {
    count_before = block_scan(b_all.count, shared_counts).before;
    if (kPass == 0) {
      remaining = static_cast<unsigned>(args.p_settings[kSampleTopK]);
    }
  }
  // Everyone has read the state; one thread, whose bins hold the limit, changes it.
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const Bin bin = b_bin[j];
    const unsigned i_bin = kBins - 1 - (threadIdx.x * kChunk + j);
    const unsigned prefix = kPass == 0 ? i_bin : state.prefix << digit_bits | i_bin;
    const Sum behind = add(before, bin.sum);
    const bool holds_limit =
        kByWeight ? to_double(before) < limit && limit <= to_double(behind)
                  : count_before < remaining && remaining <= count_before + bin.count;
    if (holds_limit) {
      p_state->prefix = kIsLast && !kByWeight ? 0 : prefix;
      if (kByWeight) {
        p_state->above = before;
        p_state->limit = limit;
      } else {
        p_state->remaining = remaining - count_before;
      }
      if (kIsLast && kByWeight) {
        // Of equal ids the i-th is kept if the sum in front of it is below the limit.
        const double weight = weight_of(key_value(prefix), state.highest, temperature);
        const double kept = ceil((limit - to_double(before)) / weight);
        const double most = bin.count;
        // Of top_k's last key only the kept ones were in the bin, but all of them are ties.
        const unsigned count = prefix == state.top_k.key ? state.top_k.count : bin.count;
        p_state->cut = {prefix, static_cast<unsigned>(fmax(1.0, fmin(kept, most))), count};
      }
      if (kIsLast && !kByWeight) {
        p_state->top_k = {prefix, remaining - count_before, bin.count};
        p_state->cut = p_state->top_k;
      }
    }
    before = behind;
    count_before += bin.count;
  }
}

// One digit of a select. kPass 0, 1, 2: the upper 11, the middle 11 and the lower 10 bits.
template <bool kByWeight, int kPass>
__global__ void __launch_bounds__(kSearchThreads, 2) sample_select_kernel(KernelArgs args) {
  constexpr unsigned kDigitBits = kPass == 2 ? 10 : 11;
  constexpr unsigned kShift = kPass == 0 ? 21 : kPass == 1 ? 10 : 0;
  __shared__ unsigned counts[kBins];
  __shared__ unsigned limbs[kByWeight ? 3 : 1][kByWeight ? kBins : 1];
  allow_next_kernel();
  const int i_first = blockIdx.x * kSlice + threadIdx.x * kChunk;
  float b_logit[kChunk];
  load_logits(args, i_first, b_logit);
  for (int i = threadIdx.x; i < kBins; i += kSearchThreads) {
    counts[i] = 0;
    if (kByWeight) {
      limbs[0][i] = 0;
      limbs[1][i] = 0;
      limbs[2][i] = 0;
    }
  }
  wait_for_previous_kernel();

  RowSpace* p_space = row_space(args);
  const Known state = load_known(args, p_space->state);
  __syncthreads();  // the bins are clear; and no load is put off behind the test
  const bool asked = kByWeight ? state.top_p < 1.0
                               : state.top_k > 0.0 && state.top_k < static_cast<double>(args.n);
  if (!asked || !state.draws()) {
    return;
  }
  const Temperature temperature = temperature_of(state.temperature);
  const double highest = state.highest;
  const unsigned prefix = state.prefix;
  const unsigned floor_key = kByWeight ? state.top_k_cut.key : 0;
  const auto counts_here = [&](int j) {
    const unsigned key = order_key(b_logit[j]);
    const bool known = kPass == 0 || (key >> kShift) >> kDigitBits == prefix;
    return i_first + j < args.n && known && key > floor_key;
  };
  bool any = false;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    any = any || counts_here(j);
  }
  if (__any_sync(kAllLanes, any)) {
    // All weights first, whether they count or not, so that their latencies overlap.
    Sum b_sum[kChunk] = {};
    if (kByWeight) {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        b_sum[j] = to_sum(weight_of(b_logit[j], highest, temperature));
      }
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      if (counts_here(j)) {
        const unsigned i_bin = (order_key(b_logit[j]) >> kShift) & ((1u << kDigitBits) - 1);
        atomicAdd(&counts[i_bin], 1u);
        if (kByWeight) {
          const Sum one = b_sum[j];
          if (one.high != 0) {
            atomicAdd(&limbs[0][i_bin], static_cast<unsigned>(one.high >> kLimbBits));
            atomicAdd(&limbs[1][i_bin], static_cast<unsigned>(one.high & kLimbMask));
          }
          atomicAdd(&limbs[2][i_bin], static_cast<unsigned>(one.low));
        }
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kSearchThreads) {
    if (counts[i] != 0) {
      atomicAdd(&p_space->histogram.counts[i], counts[i]);
      if (kByWeight) {
        const Wide high = (Wide{limbs[0][i]} << kLimbBits) + limbs[1][i];
        atomicAdd(&p_space->histogram.high[i], high);
        atomicAdd(&p_space->histogram.low[i], Wide{limbs[2][i]});
      }
    }
  }
  if (is_last_block(&p_space->state.num_done, gridDim.x)) {
    decide_digit<kByWeight, kPass>(args, p_space, kDigitBits, kShift);
  }
}

// Finds the last id kept among those whose logit is that of the cut.
__global__ void __launch_bounds__(kSearchThreads) sample_ties_kernel(KernelArgs args) {
  __shared__ unsigned shared_counts[3][kSearchWarps];
  __shared__ unsigned shared_slice[2];  // the slice with the last id, the ties in front of it
  allow_next_kernel();
  wait_for_previous_kernel();

  RowSpace* p_space = row_space(args);
  const Known state = load_known(args, p_space->state);
  const Cut cut = state.cut;
  if (!state.draws() || cut.kept == cut.count) {
    return;
  }
  unsigned* p_counts = partials<unsigned>(p_space);
  int i_first = blockIdx.x * kSlice + threadIdx.x * kChunk;
  float b_logit[kChunk];
  load_logits(args, i_first, b_logit);
  unsigned count = 0;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    count += i_first + j < args.n && order_key(b_logit[j]) == cut.key ? 1 : 0;
  }
  count = block_scan(count, shared_counts[0]).total;
  if (threadIdx.x == 0) {
    p_counts[blockIdx.x] = count;
  }
  if (!is_last_block(&p_space->state.num_done, gridDim.x)) {
    return;
  }

  unsigned b_count[kChunk];
  count = 0;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const unsigned i_slice = threadIdx.x * kChunk + j;
    b_count[j] = i_slice < gridDim.x ? p_counts[i_slice] : 0;
    count += b_count[j];
  }
  unsigned before = block_scan(count, shared_counts[1]).before;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    if (before < cut.kept && cut.kept <= before + b_count[j]) {
      shared_slice[0] = threadIdx.x * kChunk + j;
      shared_slice[1] = before;
    }
    before += b_count[j];
  }
  __syncthreads();
  i_first = static_cast<int>(shared_slice[0]) * kSlice + threadIdx.x * kChunk;
  load_logits(args, i_first, b_logit);
  count = 0;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    count += i_first + j < args.n && order_key(b_logit[j]) == cut.key ? 1 : 0;
  }
  before = shared_slice[1] + block_scan(count, shared_counts[2]).before;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    if (i_first + j < args.n && order_key(b_logit[j]) == cut.key) {
      ++before;
      if (before == cut.kept) {
        p_space->state.last_id = i_first + j;
      }
    }
  }
}

__global__ void __launch_bounds__(kSearchThreads, 2) sample_draw_kernel(KernelArgs args) {
  __shared__ DrawShared shared;
  allow_next_kernel();
  const int i_first = blockIdx.x * kSlice + threadIdx.x * kChunk;
  float b_logit[kChunk];
  load_logits(args, i_first, b_logit);
  wait_for_previous_kernel();

  const std::int64_t position = *args.p_position + args.position_offset + blockIdx.y;
  const auto seed = static_cast<std::uint64_t>(*args.p_seed);
  RowSpace* p_space = row_space(args);
  const Known state = load_known(args, p_space->state);
  const int argmax = state.argmax;
  const bool is_drawn = state.draws();
  if (!is_drawn) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      args.p_out[blockIdx.y] = argmax;
      if (args.p_totals != nullptr) {
        args.p_totals[blockIdx.y] = argmax < 0 ? __longlong_as_double(0x7ff8000000000000ll) : 1.0;
      }
    }
    if (args.p_weights == nullptr) {
      return;
    }
  }
  const Temperature temperature = temperature_of(state.temperature);
  const double min_p = state.min_p;
  const double highest = state.highest;
  const unsigned cut_key = state.cut.key;
  const int last_id = state.last_id;
  const auto weigh = [&](int i_id, const float (&b_logit)[kChunk], double (&b_weight)[kChunk]) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      b_weight[j] = weight_of(b_logit[j], highest, temperature);
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const int id = i_id + j;
      const unsigned key = order_key(b_logit[j]);
      const bool is_kept = id < args.n && (key > cut_key || (key == cut_key && id <= last_id));
      b_weight[j] = is_kept && b_weight[j] >= min_p ? b_weight[j] : 0.0;
    }
  };
  const auto load = [&](int i_id, double (&b_weight)[kChunk]) {
    float b_own[kChunk];
    load_logits(args, i_id, b_own);
    weigh(i_id, b_own, b_weight);
  };

  double b_weight[kChunk];
  if (is_drawn) {
    weigh(i_first, b_logit, b_weight);
  } else {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      b_weight[j] = argmax < 0              ? __longlong_as_double(0x7ff8000000000000ll)
                    : i_first + j == argmax ? 1.0
                                            : 0.0;
    }
  }
  if (args.p_weights != nullptr) {
    double* p_weights = args.p_weights + static_cast<std::int64_t>(blockIdx.y) * args.n;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      if (i_first + j < args.n) {
        p_weights[i_first + j] = b_weight[j];
      }
    }
  }
  if (!is_drawn) {
    return;
  }
  const double sum = slice_sum(b_weight, shared);
  double* p_partials = partials<double>(p_space);
  if (threadIdx.x == 0) {
    p_partials[blockIdx.x] = sum;
  }
  if (!is_last_block(&p_space->state.num_done, gridDim.x)) {
    return;
  }
  const double uniform = philox_uniform(seed, position, static_cast<std::uint32_t>(args.purpose));
  const Drawn drawn = finish_draw(p_partials, gridDim.x, uniform, shared, load);
  if (threadIdx.x == 0) {
    args.p_out[blockIdx.y] = drawn.id;
    if (args.p_totals != nullptr) {
      args.p_totals[blockIdx.y] = drawn.total;
    }
  }
}

std::int64_t slices_of(std::int64_t n) {
  return (n + kSlice - 1) / kSlice;
}

std::int64_t row_space_bytes(std::int64_t n) {
  const auto bytes = static_cast<std::int64_t>(sizeof(RowSpace) + slices_of(n) * sizeof(double));
  return (bytes + 15) / 16 * 16;
}

}  // namespace

std::int64_t sample_workspace_bytes(std::int64_t rows, std::int64_t n) {
  return rows * row_space_bytes(n);
}

Status sample(const SampleParams& p, void* stream) {
  if (p.rows < 0 || p.rows > kMaxRows || p.n < 1 || p.n > kMaxDrawN) {
    return kSizeOutOfRange;
  }
  if (p.rows == 0) {
    return kOk;
  }
  const DeviceGuard guard(p.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  const bool vector = reinterpret_cast<std::uintptr_t>(p.logits) % kAccessBytes == 0 &&
                      (p.rows == 1 || p.row_stride * sizeof(float) % kAccessBytes == 0);
  const KernelArgs args = {p.logits,
                           p.settings,
                           p.seed,
                           p.position,
                           p.out,
                           p.weights,
                           p.totals,
                           static_cast<char*>(p.workspace),
                           p.row_stride,
                           row_space_bytes(p.n),
                           p.position_offset,
                           static_cast<int>(p.n),
                           p.purpose,
                           vector};
  const dim3 grid(static_cast<unsigned>(slices_of(p.n)), static_cast<unsigned>(p.rows));
  LaunchOptions options;
  options.overlap_previous = true;
  Status status = kOk;
  const auto enqueue = [&](void (*kernel)(KernelArgs)) {
    if (status == kOk) {
      status = launch_with(options, kernel, grid, dim3(kSearchThreads), stream, args);
    }
  };
  enqueue(sample_start_kernel);
  if (p.with_top_k) {
    enqueue(sample_select_kernel<false, 0>);
    enqueue(sample_select_kernel<false, 1>);
    enqueue(sample_select_kernel<false, 2>);
  }
  if (p.with_top_p) {
    enqueue(sample_select_kernel<true, 0>);
    enqueue(sample_select_kernel<true, 1>);
    enqueue(sample_select_kernel<true, 2>);
  }
  if (p.with_top_k || p.with_top_p) {
    enqueue(sample_ties_kernel);
  }
  enqueue(sample_draw_kernel);
  return status;
}

}  // namespace bytebound
