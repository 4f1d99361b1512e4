// A product within a weight stream: the arithmetic and the order of matvec.cuh, where blocks are
// teams, and where nobody waits for anybody but for the numbers it needs.
#pragma once

#include "handed.cuh"
#include "stream_program.cuh"

namespace bytebound {

// Rows that are handed over, straight to where the mma takes them from.
__device__ __forceinline__ void receive_tile(const __half* p_columns,
                                             std::int64_t row_stride,
                                             int num_rows,
                                             int i_lane,
                                             ActivationTile<__half, 128>& x) {
  const int i_row = i_lane / 4;
  const __half* p_lane = p_columns + i_row * row_stride + i_lane % 4 * 32;
  constexpr int kChunks = ActivationTile<__half, 128>::kLaneChunks;
  if (i_row >= num_rows) {
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      x.values[j] = make_uint4(0, 0, 0, 0);
    }
    return;
  }
  bool absent;
  do {
    absent = false;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      x.values[j] = load_relaxed_16(p_lane + 8 * j);
    }
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      absent |= has_absent_half(x.values[j]);
    }
  } while (absent);
}

__device__ __forceinline__ void hand_over(const MatvecOutput& o,
                                          int i_feature,
                                          int i_row,
                                          float value,
                                          float residual) {
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

template <typename Items>
__device__ __forceinline__ int first_feature(int i_block, int i_pair) {
  return i_block * Items::kRows + i_pair / kMmaPairs * 16 + i_pair % kMmaPairs;
}

template <typename Items>
__device__ __forceinline__ float2
residual_of(const MatvecOutput& o, int i_block, int i_pair, int i_row) {
  float2 values = make_float2(0.0f, 0.0f);
  if (o.epilogue == MatvecEpilogue::kAddResidual) {
    const int i_feature = first_feature<Items>(i_block, i_pair);
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

template <typename Items>
__device__ __forceinline__ void hand_over_pair(
    const MatvecOutput& o, int i_block, int i_pair, int i_row, float2 sums, float2 residual) {
  const float lower = sums.x * Items::kFactor;
  const float upper = sums.y * Items::kFactorUpper;
  if (o.epilogue == MatvecEpilogue::kSwiGlu) {
    hand_over(o, i_block * (Items::kRows / 2) + i_pair, i_row, silu(lower) * upper, 0.0f);
    return;
  }
  const int i_feature = first_feature<Items>(i_block, i_pair);
  hand_over(o, i_feature, i_row, lower, residual.x);
  hand_over(o, i_feature + kMmaPairs, i_row, upper, residual.y);
}

// All threads of the team call it; num_products were called before. p_parts: [warp][head, tail][pair][row] in shared memory.
template <typename Items, typename LoadX>
__device__ __forceinline__ void stream_product(const ProductTask& task,
                                               int num_rows,
                                               Items items,
                                               LoadX load_x,
                                               const Team& team,
                                               unsigned num_products,
                                               float2* p_parts,
                                               float2* p_sent) {
  constexpr int kPairs = Items::kRows / 2;
  const int num_groups = task.num_groups;
  const int slot = kPairs * num_rows;  // pairs of floats
  const int i_lane = team.i_lane;
  const auto start_of = [&](int i_block, int w) {
    return task.shares.start(i_block * kMatvecWarps + w);
  };
  const int start = start_of(team.i_block, team.i_warp);
  const int end = start_of(team.i_block, team.i_warp + 1);
  const int block_start = start_of(team.i_block, 0);
  const int block_end = start_of(team.i_block, kMatvecWarps);
  const int i_head = block_start / num_groups;
  const int num_pieces = block_start < block_end ? (block_end - 1) / num_groups - i_head + 1 : 0;

  // This thread's first element of the end, whose residual is asked for now.
  const int first_e = num_pieces * slot - 1 - team.i_thread;
  float2 b_residual = {};
  if (first_e >= 0) {
    const int i = first_e % slot;
    b_residual =
        residual_of<Items>(task.output, i_head + first_e / slot, i / num_rows, i % num_rows);
  }

  float sums[Items::kTiles][4] = {};
  int i_row_block = start / num_groups;
  int i_group = start - i_row_block * num_groups;
  int i_first_group = i_group;
  bool parts_are_free = false;
  const unsigned parity = num_products & 1;
#pragma unroll 1
  for (int i = start; i < end; ++i) {
    typename Items::X x;
    load_x(i_group, x);
    items.accumulate(x, sums);
    ++i_group;
    if (i_group < num_groups && i + 1 < end) {
      continue;
    }
    if (!parts_are_free) {
      wait_for_phase(team.p_parts_free, parity ^ 1);
      parts_are_free = true;
    }
    const bool whole = i_first_group == 0 && i_group == num_groups;
    float2* p_part = p_parts + (team.i_warp * 2 + (i_first_group > 0 ? 0 : 1)) * slot;
#pragma unroll
    for (int i_tile = 0; i_tile < Items::kTiles; ++i_tile) {
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
        hand_over_pair<Items>(task.output, i_row_block, i_pair, i_row, p_part[e],
                              residual_of<Items>(task.output, i_row_block, i_pair, i_row));
      }
      __syncwarp();
    }
    i_group = 0;
    i_first_group = 0;
    ++i_row_block;
  }
  __syncwarp();
  if (i_lane == 0) {
    arrive_at(team.p_parts_ready);
  }

  // As matvec.cuh: the first row block comes last.
  if (num_pieces * slot - 1 - team.i_warp * kWarp >= 0) {
    wait_for_phase(team.p_parts_ready, parity);
  }
#pragma unroll 1
  for (int e = first_e; e >= 0; e -= kTeamThreads) {
    const int i_piece = e / slot;
    const int i = e - i_piece * slot;  // [pair][row]
    const int first = (i_head + i_piece) * num_groups;
    const int last = first + num_groups;  // one beyond
    int w = 0;
    while (start_of(team.i_block, w + 1) <= first) {
      ++w;
    }
    if (start_of(team.i_block, w) <= first && start_of(team.i_block, w + 1) >= last) {
      continue;  // one warp did it alone
    }
    float2 sum = p_parts[(w * 2 + (start_of(team.i_block, w) > first ? 0 : 1)) * slot + i];
#pragma unroll 1
    for (++w; w < kMatvecWarps && start_of(team.i_block, w) < last; ++w) {
      sum = sum + p_parts[w * 2 * slot + i];
    }
    if (block_end < last) {
      send(p_sent + static_cast<std::int64_t>(team.i_block) * slot + i, sum);
      continue;
    }
    if (block_start > first) {
      int i_sender = team.i_block - 1;
      while (start_of(i_sender, 0) > first) {
        --i_sender;
      }
      float2* p = p_sent + static_cast<std::int64_t>(i_sender) * slot + i;
      float2 before = make_float2(0.0f, 0.0f);
#pragma unroll 1
      for (; i_sender < team.i_block; ++i_sender, p += slot) {
        before = before + receive(p);
      }
      sum = before + sum;
    }
    const int i_pair = i / num_rows;
    const int i_row = i % num_rows;
    if (e != first_e) {
      b_residual = residual_of<Items>(task.output, i_head + i_piece, i_pair, i_row);
    }
    hand_over_pair<Items>(task.output, i_head + i_piece, i_pair, i_row, sum, b_residual);
  }
  __syncwarp();
  if (i_lane == 0) {
    arrive_at(team.p_parts_free);
  }
}

}  // namespace bytebound
