// What the kernels of attention_decode are launched with.
#pragma once

#include <cstdint>

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

}  // namespace bytebound
