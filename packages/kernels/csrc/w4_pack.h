// From the stored form of a four-bit matrix to the items that the kernels read.
#pragma once

#include <cstdint>

#include "status.h"

namespace bytebound {

// Which rows of the packed matrix a stored matrix becomes. The numbers are part of the ABI.
enum class W4Part : int {
  kRows = 0,  // first_row and the following ones
  kGate = 1,  // the gate of an interleaved matrix
  kUp = 2,    // its up
};

struct W4PackParams {
  const void* packed;      // int32 [N, K / 8], eight codes a word, the first in the lowest bits
  const void* scale;       // [N, K / 128], two bytes each, copied as they are
  const void* zero_point;  // int32 [(N + 7) / 8, K / 128], or null: symmetric
  void* items;             // cuda/w4.cuh; what no stored row becomes keeps its bytes
  std::int64_t n;          // rows of the stored matrix
  std::int64_t k;
  std::int64_t items_rows;  // rows of the packed matrix, without padding
  std::int64_t first_row;   // for kRows
  W4Part part;
  int device;
};

// Enqueues one kernel: no allocation, no synchronisation. Two calls for one packed matrix must run
// on one stream, since words that they share are read and written again.
Status w4_pack(const W4PackParams& params, void* stream);

}  // namespace bytebound
