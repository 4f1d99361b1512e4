// A product within a weight stream: the arithmetic and the order of matvec.cuh, where blocks are
// teams, and where nobody waits for anybody but for the numbers it needs.
#pragma once

#include "handed.cuh"
#include "stream_program.cuh"
#include "weight_ring.cuh"

namespace bytebound {

// Rows that are handed over, for several items at once: an mma has eight columns, so rows of the
// next items fill those that this one leaves. Each column meets its own sums alone, and those of
// other items are not read; when an item is done, the next one's rows move to its place.
class HandedTile {
 public:
  using Tile = ActivationTile<__half, 128>;

  // For the item of group i_group, of which num_left are to come, in groups of num_groups.
  __device__ __forceinline__ void load(const __half* p_x,
                                       std::int64_t row_stride,
                                       int num_rows,
                                       int i_group,
                                       int num_groups,
                                       int num_left,
                                       int i_lane,
                                       Tile& x) {
    if (num_held_ > 0) {
      --num_held_;
#pragma unroll
      for (int j = 0; j < Tile::kLaneChunks; ++j) {
        uint4& v = x.values[j];
        v.x = __shfl_down_sync(kAllLanes, v.x, 4 * num_rows);
        v.y = __shfl_down_sync(kAllLanes, v.y, 4 * num_rows);
        v.z = __shfl_down_sync(kAllLanes, v.z, 4 * num_rows);
        v.w = __shfl_down_sync(kAllLanes, v.w, 4 * num_rows);
      }
      return;
    }
    const int num_items = min(8 / num_rows, num_left);
    num_held_ = num_items - 1;
    const int i_item = i_lane / 4 / num_rows;
    const int i_row = i_lane / 4 - i_item * num_rows;
    const __half* p_lane =
        p_x + i_row * row_stride + (i_group + i_item) % num_groups * 128 + i_lane % 4 * 32;
#pragma unroll
    for (int j = 0; j < Tile::kLaneChunks; ++j) {
      x.values[j] = make_uint4(0, 0, 0, 0);
    }
    bool absent = i_item < num_items;
#pragma unroll 1
    while (absent) {
      absent = false;
#pragma unroll
      for (int j = 0; j < Tile::kLaneChunks; ++j) {
        x.values[j] = load_relaxed_16(p_lane + 8 * j);
      }
#pragma unroll
      for (int j = 0; j < Tile::kLaneChunks; ++j) {
        absent |= has_absent_half(x.values[j]);
      }
    }
    __syncwarp();
  }

 private:
  int num_held_ = 0;  // items whose rows are there, behind the current one
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

__device__ __forceinline__ void hand_over_pair(
    const MatvecOutput& o, int i_block, int i_pair, int i_row, float2 sums, float2 residual) {
  float lower = sums.x * W4Codec<__half>::kFactor;
  const float upper = sums.y * W4Codec<__half>::kFactorUpper;
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
template <bool kAsymmetric, typename Stamp>
__device__ __forceinline__ void stream_product(const StreamProgram& program,
                                               const ProductTask& task,
                                               const RingPlace& ring_place,
                                               const Team& team,
                                               const __half* p_normed,
                                               float2* p_parts,
                                               float2* p_sent,
                                               Stamp stamp) {
  const int num_rows = program.num_rows;
  const int num_groups = task.num_groups;
  const int slot = kItemTiles * kMmaPairs * num_rows;  // pairs of floats
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
    const int first_e = pieces.num * slot - 1 - team.i_thread;
    if (first_e >= 0) {
      const int i = first_e % slot;
      b_residual =
          residual_of(task.output, pieces.i_head + first_e / slot, i / num_rows, i % num_rows);
    }
  }

  float sums[kItemTiles][4] = {};
  int i_row_block = start / num_groups;
  int i_group = start - i_row_block * num_groups;
  int i_first_group = i_group;
  bool parts_are_free = false;
  ActivationTile<__half, kGroup> x = {};
  HandedTile handed;
#pragma unroll 1
  for (int i = start; i < end; ++i) {
    const __half* p_columns = p_normed + i_group * kGroup;
    if (task.p_x == nullptr) {
      x.load(p_columns, program.normed_stride, num_rows, i_lane);
    } else {
      handed.load(task.p_x, task.x_row_stride, num_rows, i_group, num_groups, end - i, i_lane, x);
    }
    if (i == start) {
      stamp(1);  // its input is there
    }
    const SlotItem item = WeightRing<kAsymmetric>::take(ring_place);
    add_product<__half, kAsymmetric>(item, task.bfloat16_scales, x, sums, [](int) {});
    WeightRing<kAsymmetric>::release(program, ring_place);
    ++i_group;
    if (i_group < num_groups && i + 1 < end) {
      continue;
    }
    if (!parts_are_free) {
      wait_for_phase(team.p_parts_free, task.parity ^ 1);
      parts_are_free = true;
    }
    const bool whole = i_first_group == 0 && i_group == num_groups;
    float2* p_part = p_parts + (team.i_warp * 2 + (i_first_group > 0 ? 0 : 1)) * slot;
#pragma unroll
    for (int i_tile = 0; i_tile < kItemTiles; ++i_tile) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i_row = i_lane % 4 * 2 + j;
        const int i_pair = i_tile * kMmaPairs + i_lane / 4;
        if (i_row < num_rows) {
          p_part[i_pair * num_rows + i_row] = make_float2(sums[i_tile][j], sums[i_tile][j + 2]);
        }
        sums[i_tile][j] = 0.0f;
        sums[i_tile][j + 2] = 0.0f;
      }
    }
    if (whole) {
      __syncwarp();
#pragma unroll 1
      for (int e = i_lane; e < slot; e += kWarp) {
        const int i_pair = e / num_rows;
        const int i_row = e % num_rows;
        hand_over_pair(task.output, i_row_block, i_pair, i_row, p_part[e],
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

  // As matvec.cuh: the first row block comes last.
  int i_block = team.i_block;
  asm volatile("" : "+r"(i_block));  // worked out again: registers are scarce in the loop
  const Pieces pieces(task, i_block);
  const int first_e = pieces.num * slot - 1 - team.i_thread;
  // Also a warp that adds nothing up: else it could arrive at the next product's end before others
  // have come to this one's.
  wait_for_phase(team.p_parts_ready, task.parity);
#pragma unroll 1
  for (int e = first_e; e >= 0; e -= kTeamThreads) {
    const int i_piece = e / slot;
    const int i = e - i_piece * slot;  // [pair][row]
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
    float2 sum = p_parts[(w * 2 + (start_w > first ? 0 : 1)) * slot + i];
#pragma unroll 1
    for (++w; w < kMatvecWarps && start_of(i_block, w) < last; ++w) {
      sum = sum + p_parts[w * 2 * slot + i];
    }
    if (pieces.end < last) {
      store_relaxed(p_sent + static_cast<std::int64_t>(i_block) * slot + i, sum);
      continue;
    }
    if (pieces.start > first) {
      int i_sender = i_block - 1;
#pragma unroll 1
      while (start_of(i_sender, 0) > first) {
        --i_sender;
      }
      sum = receive_sum(p_sent + static_cast<std::int64_t>(i_sender) * slot + i, slot,
                        i_block - i_sender) +
            sum;
    }
    const int i_pair = i / num_rows;
    const int i_row = i % num_rows;
    if (e != first_e) {
      b_residual = residual_of(task.output, pieces.i_head + i_piece, i_pair, i_row);
    }
    hand_over_pair(task.output, pieces.i_head + i_piece, i_pair, i_row, sum, b_residual);
  }
  __syncwarp();
  if (i_lane == 0) {
    arrive_at(team.p_parts_free);
  }
}

}  // namespace bytebound
