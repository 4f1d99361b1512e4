// What the kernels of attention_decode are launched with, and attention within the weight stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../attention_decode.h"
#include "attention_leaf.cuh"
#include "attention_unseen.cuh"
#include "chunk.cuh"

namespace bytebound {

struct AttentionArgs {
  const void* p_q_gate;
  const void* p_k;
  const void* p_v;
  const void* p_q_norm;
  const void* p_k_norm;
  const float* p_inv_freq;
  const int* p_position;
  unsigned char* p_k_cache;
  unsigned char* p_v_cache;
  float* p_k_scale;
  float* p_v_scale;
  void* p_out;
  float2* p_max_sum;  // [R, NH, leaf]
  float* p_partial;   // [R, NH, leaf, DH]
  int64_t q_gate_row_stride;
  int64_t k_row_stride;
  int64_t v_row_stride;
  int64_t out_row_stride;
  int64_t cache_head_stride;  // in elements
  int64_t scale_head_stride;
  int rows;
  int num_heads;
  int num_kv_heads;
  int num_parts;
  int max_positions;
  int max_leaves;
  int num_stages;   // 2 to kMaxStages
  int half_rotary;  // rotary_dim / 2
  float eps;
  float score_unit;  // scale * log2(e): scores are powers of two
  bool half_rows;    // q_gate, k, v and out are float16, else bfloat16
  bool float_norms;  // the norms' weights are float32, else as the rows
  bool vector;       // every row of q_gate, k and v is 16-byte aligned
};

// Whether the position that the device holds leaves room for the rows.
__device__ __forceinline__ bool is_in_range(int position, const AttentionArgs& args) {
  return position >= 0 && position <= args.max_positions - args.rows;
}

// Where the parts of the workspace begin.
struct AttentionWorkspace {
  std::size_t partial, end;

  AttentionWorkspace(std::int64_t rows, std::int64_t num_heads, std::int64_t max_positions) {
    const auto aligned = [](std::size_t bytes) {
      constexpr std::size_t kAlignment = 256;
      return (bytes + kAlignment - 1) / kAlignment * kAlignment;
    };
    const std::size_t vectors = rows * num_heads;
    const std::size_t leaves = num_leaves(static_cast<int>(max_positions));
    partial = aligned(vectors * leaves * sizeof(float2));
    end = partial + vectors * leaves * kHeadDim * sizeof(float);
  }
};

inline bool attention_sizes_fit(const AttentionDecodeParams& p) {
  constexpr int kMaxHeads = 1024;
  const bool heads = p.num_kv_heads >= 1 && p.num_heads >= p.num_kv_heads &&
                     p.num_heads <= kMaxHeads && p.num_heads % p.num_kv_heads == 0;
  return heads && p.rows >= 1 && p.rows <= kMaxRows && p.max_positions >= p.rows &&
         p.max_positions <= kMaxPositions && p.rotary_dim >= 16 && p.rotary_dim <= kHeadDim &&
         p.rotary_dim % 16 == 0;
}

// The stages are set where the device is asked.
inline AttentionArgs attention_args_of(const AttentionDecodeParams& p, int num_parts) {
  constexpr double kLog2E = 1.4426950408889634;
  const auto is_vector = [](const void* p_first, std::int64_t row_stride) {
    return reinterpret_cast<std::uintptr_t>(p_first) % kAccessBytes == 0 &&
           row_stride % kChunk == 0;
  };
  auto* p_workspace = static_cast<unsigned char*>(p.workspace);
  const AttentionWorkspace parts(p.rows, p.num_heads, p.max_positions);
  return {p.q_gate,
          p.k,
          p.v,
          p.q_norm,
          p.k_norm,
          p.inv_freq,
          p.position,
          static_cast<unsigned char*>(p.k_cache),
          static_cast<unsigned char*>(p.v_cache),
          p.k_scale,
          p.v_scale,
          p.out,
          reinterpret_cast<float2*>(p_workspace),
          reinterpret_cast<float*>(p_workspace + parts.partial),
          p.q_gate_row_stride,
          p.k_row_stride,
          p.v_row_stride,
          p.out_row_stride,
          p.cache_head_stride,
          p.scale_head_stride,
          static_cast<int>(p.rows),
          static_cast<int>(p.num_heads),
          static_cast<int>(p.num_kv_heads),
          num_parts,
          static_cast<int>(p.max_positions),
          num_leaves(static_cast<int>(p.max_positions)),
          0,
          static_cast<int>(p.rotary_dim / 2),
          p.eps,
          static_cast<float>(p.scale * kLog2E),
          p.x_dtype == DType::kFloat16,
          p.norm_dtype == DType::kFloat32,
          is_vector(p.q_gate, p.q_gate_row_stride) && is_vector(p.k, p.k_row_stride) &&
              is_vector(p.v, p.v_row_stride)};
}

}  // namespace bytebound
