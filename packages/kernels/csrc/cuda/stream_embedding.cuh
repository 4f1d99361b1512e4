// Rows of an embedding table within a weight stream: a warp takes 256 elements of a row.
#pragma once

#include "chunk.cuh"
#include "gpu_scope.cuh"
#include "stream_program.cuh"

namespace bytebound {

__device__ __forceinline__ void stream_embedding(const EmbeddingTask& task,
                                                 int num_rows,
                                                 int i_thread) {
  const int num_chunks = task.d / kChunk;  // of a row
  const int num_parts = (num_chunks + kWarp - 1) / kWarp;
#pragma unroll 1
  for (int unit = i_thread / kWarp * num_blocks() + block_index(); unit < num_parts * num_rows;
       unit += kStreamWarps * num_blocks()) {
    const int i_row = unit / num_parts;
    const int i_chunk = unit % num_parts * kWarp + i_thread % kWarp;
    if (i_chunk >= num_chunks) {
      continue;
    }
    const int id = task.p_ids[i_row];
    uint4 b[2];
    if (id >= 0 && id < task.n) {
      float b_row[kChunk];
      load_whole_chunk(task.p_table + id * task.table_row_stride + i_chunk * kChunk, b_row);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        b[i] = make_uint4(__float_as_uint(b_row[4 * i]), __float_as_uint(b_row[4 * i + 1]),
                          __float_as_uint(b_row[4 * i + 2]), __float_as_uint(b_row[4 * i + 3]));
      }
    } else {
      b[0] = b[1] = make_uint4(0x7fc00000u, 0x7fc00000u, 0x7fc00000u, 0x7fc00000u);  // NaN
    }
    float* p_out = task.p_out + i_row * task.out_row_stride + i_chunk * kChunk;
    store_relaxed_16(p_out, b[0]);
    store_relaxed_16(p_out + 4, b[1]);
  }
}

}  // namespace bytebound
