// The tensor core instructions of the kernels: 16 x 16 times 16 x 8 with float32 sums, and
// 16 x 32 times 32 x 8 of bytes with integer sums.
//
// A column of B meets only its own column of C: what is in the other columns changes no bit of it.
// Lane layout (PTX ISA, "Matrix fragments for mma.m16n8k16"), i_quad = lane / 4, i_pair = lane % 4:
//   a[0]: row i_quad,     k 2 i_pair + {0, 1}      a[2]: the same row, k + 8
//   a[1]: row i_quad + 8, k 2 i_pair + {0, 1}      a[3]: the same row, k + 8
//   b[0]: column i_quad,  k 2 i_pair + {0, 1}      b[1]: the same column, k + 8
//   c[0], c[1]: row i_quad,     columns 2 i_pair + {0, 1}
//   c[2], c[3]: row i_quad + 8, columns 2 i_pair + {0, 1}
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace bytebound {

// c += A B. The last argument only names the element type of A and B.
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4],
                                             const uint32_t (&a)[4],
                                             const uint32_t (&b)[2],
                                             __half /* type */) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma_m16n8k16(float (&c)[4],
                                             const uint32_t (&a)[4],
                                             const uint32_t (&b)[2],
                                             __nv_bfloat16 /* type */) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += A B, A of unsigned and B of signed bytes, exact. Lane layout (PTX ISA, "Matrix fragments for
// mma.m16n8k32"): c as above, and
//   a[0]: row i_quad,     k 4 i_pair .. + 3      a[2]: the same row, k + 16
//   a[1]: row i_quad + 8, k 4 i_pair .. + 3      a[3]: the same row, k + 16
//   b[0]: column i_quad,  k 4 i_pair .. + 3      b[1]: the same column, k + 16
__device__ __forceinline__ void mma_m16n8k32(int (&c)[4],
                                             const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace bytebound
