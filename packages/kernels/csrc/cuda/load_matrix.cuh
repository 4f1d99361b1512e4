// Loads of mma operands from shared memory. Four 8 x 8 matrices of 16-bit elements come at once:
// lane l hands in the address of a row of eight elements (16 bytes, aligned): row l % 8 of matrix
// l / 8. It gets two elements of each matrix m in b[m]. PTX ISA, "ldmatrix".
#pragma once

#include <cstdint>

namespace bytebound {

// b[m]: row lane / 4, columns 2 (lane % 4) + {0, 1}. For an operand whose k runs along the rows.
__device__ __forceinline__ void load_matrices(uint32_t (&b)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(row_address)
               : "memory");
}

// b[m]: column lane / 4, rows 2 (lane % 4) + {0, 1}. For an operand whose k runs down the columns.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&b)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(row_address)
               : "memory");
}

// Eight bytes, which each lane asks for by itself.
__device__ __forceinline__ void load_pair(uint32_t (&b)[2], uint32_t address) {
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
               : "=r"(b[0]), "=r"(b[1])
               : "r"(address)
               : "memory");
}

}  // namespace bytebound
