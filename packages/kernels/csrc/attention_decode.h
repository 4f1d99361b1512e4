// Gated attention of a few consecutive rows to a cache of keys and values, which they extend.
// Pointers, sizes, strides and a stream: no framework.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"
#include "status.h"

namespace bytebound {

struct AttentionDecodeParams {
  const void* q_gate;            // [R, NH, 2, DH] of x_dtype: queries and gates before any norm
  const void* k;                 // [R, NKV, DH] of x_dtype
  const void* v;                 // [R, NKV, DH] of x_dtype
  const void* q_norm;            // [DH] of norm_dtype
  const void* k_norm;            // [DH] of norm_dtype
  const float* inv_freq;         // [rotary_dim / 2]
  const std::int32_t* position;  // [1], in device memory: the position of row 0
  void* k_cache;                 // [NKV, S, DH] of cache_dtype
  void* v_cache;                 // [NKV, S, DH] of cache_dtype
  // Read in whole 16 bytes: the memory goes on up to a multiple of that, as any allocation does.
  float* k_scale;              // [NKV, S]; float8 only
  float* v_scale;              // [NKV, S]; float8 only
  void* workspace;             // attention_decode_workspace_bytes, 256-byte aligned
  void* out;                   // [R, NH, DH] of x_dtype
  std::int64_t rows;           // R, 1 to 8
  std::int64_t num_heads;      // NH, a multiple of NKV
  std::int64_t num_kv_heads;   // NKV
  std::int64_t max_positions;  // S, up to 2^20
  std::int64_t rotary_dim;     // a multiple of 16, up to DH = 256
  // In elements: from row to row, and from kv head to kv head of the cache and of its scales. The
  // positions of a head are contiguous.
  std::int64_t q_gate_row_stride;
  std::int64_t k_row_stride;
  std::int64_t v_row_stride;
  std::int64_t out_row_stride;
  std::int64_t cache_head_stride;
  std::int64_t scale_head_stride;
  DType x_dtype;      // kFloat16 or kBFloat16
  DType norm_dtype;   // x_dtype or kFloat32
  DType cache_dtype;  // kFloat16, kBFloat16 or kFloat8E4M3
  float eps;
  float scale;  // of the scores
  int device;
};

// For row r at position p + r, with q, k normed ("1 + w") per head and their first rotary_dim dims
// turned:
//   k_cache[:, p + r] = k[r],  v_cache[:, p + r] = v[r]
//   out[r] = softmax(q[r] . k_cache[:, 0 .. p + r] * scale) v_cache[:, 0 .. p + r] *
//   sigmoid(gate[r])
//
// Enqueues two kernels on `stream` and returns: no allocation, no synchronisation, legal under
// stream capture, and one captured launch serves every position. A row's bits depend on its inputs,
// its position and the cache before it: not on R. Where p is negative or p + R > S nothing is
// appended, and out is NaN.
Status attention_decode(const AttentionDecodeParams& params, void* stream);

// Bytes of workspace for calls of up to `rows` rows. Its contents need not be kept or set.
std::size_t attention_decode_workspace_bytes(std::int64_t rows,
                                             std::int64_t num_heads,
                                             std::int64_t max_positions);

}  // namespace bytebound
