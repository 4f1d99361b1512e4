// A product within a weight stream: the arithmetic of w4_matvec (w4.cuh, digits.cuh) and the order
// of matvec.cuh, where blocks are teams, and where nobody waits for anybody but for the numbers it
// needs.
#pragma once

#include "handed.cuh"
#include "special_registers.cuh"
#include "stream_program.cuh"
#include "weight_ring.cuh"

namespace bytebound {

// The activation rows of a product, in sets of up to four that an item meets one after the other:
// all of them at once need more registers than there are. Rows that are handed over are asked for a
// set ahead, and again for as long as some are absent.
template <int kRows>
class StreamActivations {
 public:
  static constexpr int kSets = (kRows + kMmaDigitRows - 1) / kMmaDigitRows;
  template <int kSet>
  static constexpr int kSetRows = kSet < kSets - 1 ? kMmaDigitRows : kRows - kMmaDigitRows * kSet;

  // p_normed: of rows that are not handed over. p_digits: room for a set, of this warp alone.
  __device__ __forceinline__ StreamActivations(const ProductTask& task,
                                               const __half* p_normed,
                                               int normed_stride,
                                               unsigned char* p_digits,
                                               int i_lane)
      : task_(task),
        p_normed_(p_normed),
        normed_stride_(normed_stride),
        p_digits_(p_digits),
        i_lane_(i_lane) {}

  template <int kSet>
  __device__ __forceinline__ void ahead(int i_group) {
    if (task_.p_x != nullptr) {
      ask<kSet>(i_group);
    }
  }

  // Of what ahead() was told last.
  template <int kSet>
  __device__ __forceinline__ DigitTile<kSetRows<kSet>> take(int i_group) {
    if (task_.p_x == nullptr) {
      const __half* p = p_normed_ + kMmaDigitRows * kSet * normed_stride_ + i_group * kGroup;
#pragma unroll
      for (int i_row = 0; i_row < kSetRows<kSet>; ++i_row) {
        values_[i_row] = *reinterpret_cast<const uint2*>(p + i_row * normed_stride_ + 4 * i_lane_);
      }
    } else {
#pragma unroll 1
      while (any_absent<kSet>()) {
        ask<kSet>(i_group);
      }
    }
    return to_digits<__half, kSetRows<kSet>>(values_, p_digits_, i_lane_);
  }

 private:
  template <int kSet>
  __device__ __forceinline__ void ask(int i_group) {
    const std::int64_t stride = task_.x_row_stride;
    const __half* p = task_.p_x + kMmaDigitRows * kSet * stride + i_group * kGroup + 4 * i_lane_;
#pragma unroll
    for (int i_row = 0; i_row < kSetRows<kSet>; ++i_row) {
      const unsigned long long bits = load_relaxed_8(p + i_row * stride);
      values_[i_row] = make_uint2(static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32));
    }
  }

  template <int kSet>
  __device__ __forceinline__ bool any_absent() const {
    bool absent = false;
#pragma unroll
    for (int i_row = 0; i_row < kSetRows<kSet>; ++i_row) {
      absent |= has_absent_half(values_[i_row]);
    }
    return absent;
  }

  const ProductTask& task_;
  const __half* p_normed_;
  int normed_stride_;
  unsigned char* p_digits_;
  int i_lane_;
  uint2 values_[kSetRows<0>] = {};  // of this lane: columns 4 i_lane .. + 3
};

__device__ __forceinline__ void hand_over(
    const MatvecOutput& o, int i_feature, int i_row, float value, float residual) {
  if (i_feature >= o.n) {
    return;
  }
  const std::int64_t at = i_row * o.out_row_stride + i_feature;
  value = __fmul_rn(value, o.scale);
  if (o.epilogue == MatvecEpilogue::kAddResidual) {
    value = __fadd_rn(value, residual);
  }
  if (o.float_out) {
    store_relaxed(static_cast<float*>(o.p_out) + at, value);
  } else {
    store_relaxed(static_cast<__half*>(o.p_out) + at, from_float<__half>(value));
  }
}

__device__ __forceinline__ int first_feature(int i_block, int i_pair) {
  return i_block * kItemRows + i_pair / kMmaPairs * 16 + i_pair % kMmaPairs;
}

__device__ __forceinline__ float2 residual_of(const MatvecOutput& o,
                                              int i_block,
                                              int i_pair,
                                              int i_row) {
  float2 values = make_float2(0.0f, 0.0f);
  if (o.epilogue == MatvecEpilogue::kAddResidual) {
    const int i_feature = first_feature(i_block, i_pair);
    const float* p = static_cast<const float*>(o.p_residual) + i_row * o.residual_row_stride;
    if (i_feature < o.n) {
      values.x = __uint_as_float(load_relaxed_4(p + i_feature));
    }
    if (i_feature + kMmaPairs < o.n) {
      values.y = __uint_as_float(load_relaxed_4(p + i_feature + kMmaPairs));
    }
  }
  return values;
}

template <typename Weights>
__device__ __forceinline__ void hand_over_pair(
    const MatvecOutput& o, int i_block, int i_pair, int i_row, float2 sums, float2 residual) {
  float lower = sums.x * Weights::kFactor;
  const float upper = sums.y * Weights::kFactorUpper;
  int i_feature = first_feature(i_block, i_pair);
  if (o.epilogue == MatvecEpilogue::kSwiGlu) {
    lower = silu(lower) * upper;
    i_feature = i_block * (kItemRows / 2) + i_pair;
  }
  hand_over(o, i_feature, i_row, lower, residual.x);
  if (o.epilogue != MatvecEpilogue::kSwiGlu) {
    hand_over(o, i_feature + kMmaPairs, i_row, upper, residual.y);
  }
}

// What a team has of the row blocks: `num` of them from i_head on, the first and the last in part.
struct Pieces {
  int start;  // items of the team
  int end;
  int i_head;
  int num;

  __device__ __forceinline__ Pieces(const ProductTask& task, int i_block)
      : start(task.shares.start(i_block * kMatvecWarps)),
        end(task.shares.start((i_block + 1) * kMatvecWarps)),
        i_head(start / task.num_groups),
        num(start < end ? (end - 1) / task.num_groups - i_head + 1 : 0) {}
};

// All threads of the team call it. p_parts: [warp][head, tail][pair][row] in shared memory.
template <bool kAsymmetric, int kNumRows, typename Stamp>
__device__ __forceinline__ void stream_product(const StreamProgram& program,
                                               const ProductTask& task,
                                               const RingPlace& ring_place,
                                               const Team& team,
                                               const __half* p_normed,
                                               float2* p_parts,
                                               float2* p_sent,
                                               Stamp stamp) {
  using Weights = W4Weights<__half, kAsymmetric, kNumRows>;
  using Activations = StreamActivations<kNumRows>;
  constexpr int kSlot = kItemTiles * kMmaPairs * kNumRows;  // pairs of floats
  const int num_groups = task.num_groups;
  const int i_lane = team.i_lane;
  const auto start_of = [&](int i_block, int w) {
    return task.shares.start(i_block * kMatvecWarps + w);
  };
  const int start = start_of(team.i_block, team.i_warp);
  const int end = start_of(team.i_block, team.i_warp + 1);
  // This thread's first element of the end, whose residual is asked for now.
  float2 b_residual = {};
  {
    const Pieces pieces(task, team.i_block);
    const int first_e = pieces.num * kSlot - 1 - team.i_thread;
    if (first_e >= 0) {
      const int i = first_e % kSlot;
      b_residual =
          residual_of(task.output, pieces.i_head + first_e / kSlot, i / kNumRows, i % kNumRows);
    }
  }

  float sums[Activations::kSets][kItemTiles][2] = {};
  int i_row_block = start / num_groups;
  int i_group = start - i_row_block * num_groups;
  int i_first_group = i_group;
  // Digits take nothing from the ring: they lie where this warp's tail will, which is written when
  // the last of them have been read.
  static_assert(kSlot * sizeof(float2) == kNumRows * kDigitRowBytes, "a tail has room for digits");
  Activations activations(task, p_normed, program.normed_stride,
                          reinterpret_cast<unsigned char*>(p_parts + (team.i_warp * 2 + 1) * kSlot),
                          i_lane);
  if (start < end) {
    activations.template ahead<0>(i_group);
  }
  wait_for_phase(team.p_parts_free, task.parity ^ 1);
  const auto multiply = [&](const SlotItem& item, const auto& x, float (&set)[kItemTiles][2]) {
    add_product<kAsymmetric>(item, task.bfloat16_scales, x, set, [](int) {});
  };
#pragma unroll 1
  for (int i = start; i < end; ++i) {
    const auto next_ahead = [&] {
      if (i + 1 < end) {
        activations.template ahead<0>(i_group + 1 == num_groups ? 0 : i_group + 1);
      }
    };
    const auto x = activations.template take<0>(i_group);
    if (i == start) {
      stamp(1);  // its input is there
    }
    if constexpr (Activations::kSets == 1) {
      next_ahead();
      multiply(WeightRing<kAsymmetric>::take(ring_place), x, sums[0]);
    } else {
      static_assert(Activations::kSets == 2);
      activations.template ahead<1>(i_group);
      const SlotItem item = WeightRing<kAsymmetric>::take(ring_place);
      multiply(item, x, sums[0]);
      const auto others = activations.template take<1>(i_group);
      next_ahead();
      multiply(item, others, sums[1]);
    }
    WeightRing<kAsymmetric>::release(program, ring_place);
    ++i_group;
    if (i_group < num_groups && i + 1 < end) {
      continue;
    }
    const bool whole = i_first_group == 0 && i_group == num_groups;
    float2* p_part = p_parts + (team.i_warp * 2 + (i_first_group > 0 ? 0 : 1)) * kSlot;
#pragma unroll
    for (int i_tile = 0; i_tile < kItemTiles; ++i_tile) {
#pragma unroll
      for (int i_set = 0; i_set < Activations::kSets; ++i_set) {
        const int i_row = Weights::row(i_lane, i_set);
        const int i_pair = i_tile * kMmaPairs + i_lane / 4;
        float (&pair)[2] = sums[i_set][i_tile];
        if (i_row < kNumRows) {
          p_part[i_pair * kNumRows + i_row] = make_float2(pair[0], pair[1]);
        }
        pair[0] = 0.0f;
        pair[1] = 0.0f;
      }
    }
    if (whole) {
      __syncwarp();
#pragma unroll 1
      for (int e = i_lane; e < kSlot; e += kWarp) {
        const int i_pair = e / kNumRows;
        const int i_row = e % kNumRows;
        hand_over_pair<Weights>(task.output, i_row_block, i_pair, i_row, p_part[e],
                                residual_of(task.output, i_row_block, i_pair, i_row));
      }
      __syncwarp();
    }
    i_group = 0;
    i_first_group = 0;
    ++i_row_block;
  }
  stamp(2);  // its items are done
  __syncwarp();
  if (i_lane == 0) {
    arrive_at(team.p_parts_ready);
  }

  // As matvec.cuh: the first row block comes last. Indices are worked out again, since registers
  // are scarce in the loop.
  const int i_thread = thread_index() % kTeamThreads;
  int i_block = team.i_block;
  asm volatile("" : "+r"(i_block));
  const Pieces pieces(task, i_block);
  const int first_e = pieces.num * kSlot - 1 - i_thread;
  // Also a warp that adds nothing up: else it could arrive at the next product's end before others
  // have come to this one's.
  wait_for_phase(team.p_parts_ready, task.parity);
#pragma unroll 1
  for (int e = first_e; e >= 0; e -= kTeamThreads) {
    const int i_piece = e / kSlot;
    const int i = e - i_piece * kSlot;  // [pair][row]
    const int first = (pieces.i_head + i_piece) * num_groups;
    const int last = first + num_groups;  // one beyond
    int w = 0;
#pragma unroll 1
    while (start_of(i_block, w + 1) <= first) {
      ++w;
    }
    const int start_w = start_of(i_block, w);
    if (start_w <= first && start_of(i_block, w + 1) >= last) {
      continue;  // one warp did it alone
    }
    float2 sum = p_parts[(w * 2 + (start_w > first ? 0 : 1)) * kSlot + i];
#pragma unroll 1
    for (++w; w < kMatvecWarps && start_of(i_block, w) < last; ++w) {
      sum = sum + p_parts[w * 2 * kSlot + i];
    }
    if (pieces.end < last) {
      store_relaxed(p_sent + static_cast<std::int64_t>(i_block) * kSlot + i, sum);
      continue;
    }
    if (pieces.start > first) {
      int i_sender = i_block - 1;
#pragma unroll 1
      while (start_of(i_sender, 0) > first) {
        --i_sender;
      }
      sum = receive_sum(p_sent + static_cast<std::int64_t>(i_sender) * kSlot + i, kSlot,
                        i_block - i_sender) +
            sum;
    }
    const int i_pair = i / kNumRows;
    const int i_row = i % kNumRows;
    if (e != first_e) {
      b_residual = residual_of(task.output, pieces.i_head + i_piece, i_pair, i_row);
    }
    hand_over_pair<Weights>(task.output, pieces.i_head + i_piece, i_pair, i_row, sum, b_residual);
  }
  __syncwarp();
  if (i_lane == 0) {
    arrive_at(team.p_parts_free);
  }
}

}  // namespace bytebound
