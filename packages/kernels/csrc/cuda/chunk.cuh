// Loads and stores of eight consecutive elements of a row, as floats.
//
// A chunk is eight elements whatever their type, and holds the same values whether it was loaded
// with 16-byte accesses or element by element: a sum over chunks has one order, which alignment
// does not change.
#pragma once

#include "convert.cuh"

namespace bytebound {

constexpr int kChunk = 8;         // elements
constexpr int kAccessBytes = 16;  // the widest load of one thread

// As many elements as one 16-byte access moves.
template <typename T>
struct alignas(kAccessBytes) Pack {
  static constexpr int kSize = kAccessBytes / sizeof(T);  // in elements
  T v[kSize];
};

// b_out = p[0 .. 7]; p is 16-byte aligned.
template <typename T>
__device__ __forceinline__ void load_whole_chunk(const T* p, float (&b_out)[kChunk]) {
  constexpr int kSize = Pack<T>::kSize;
  const auto* p_pack = reinterpret_cast<const Pack<T>*>(p);
#pragma unroll
  for (int i_pack = 0; i_pack < kChunk / kSize; ++i_pack) {
    const Pack<T> b_pack = p_pack[i_pack];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      b_out[i_pack * kSize + j] = to_float(b_pack.v[j]);
    }
  }
}

// p[0 .. 7] = b_in; p is 16-byte aligned.
template <typename T>
__device__ __forceinline__ void store_whole_chunk(T* p, const float (&b_in)[kChunk]) {
  constexpr int kSize = Pack<T>::kSize;
  auto* p_pack = reinterpret_cast<Pack<T>*>(p);
#pragma unroll
  for (int i_pack = 0; i_pack < kChunk / kSize; ++i_pack) {
    Pack<T> b_pack;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      b_pack.v[j] = from_float<T>(b_in[i_pack * kSize + j]);
    }
    p_pack[i_pack] = b_pack;
  }
}

// b_out = p_row[i_first .. i_first + 7], and 0 beyond the row's d elements.
// kVector promises that p_row + i_first is 16-byte aligned.
template <bool kVector, typename T>
__device__ __forceinline__ void load_chunk(const T* p_row,
                                           int i_first,
                                           int d,
                                           float (&b_out)[kChunk]) {
  if (kVector && i_first + kChunk <= d) {
    load_whole_chunk(p_row + i_first, b_out);
    return;
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    b_out[j] = i_first + j < d ? to_float(p_row[i_first + j]) : 0.0f;
  }
}

// p_row[i_first .. i_first + 7] = b_in, up to the row's d elements. kVector as above.
template <bool kVector, typename T>
__device__ __forceinline__ void store_chunk(T* p_row,
                                            int i_first,
                                            int d,
                                            const float (&b_in)[kChunk]) {
  if (kVector && i_first + kChunk <= d) {
    store_whole_chunk(p_row + i_first, b_in);
    return;
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    if (i_first + j < d) {
      p_row[i_first + j] = from_float<T>(b_in[j]);
    }
  }
}

}  // namespace bytebound
