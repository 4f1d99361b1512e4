// What moves on in the Gated DeltaNet layers between two passes, when the recurrent state has
// already: the conv windows take in the accepted rows, and the rows of this pass become pending.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "status.h"

namespace bytebound {

// L layers; all of 16 bits an element, addresses and distances multiples of 4 bytes.
struct GdnKeepParams {
  const void* projected;  // [R, L, C] of this pass: the channels before the convolution
  const void* gates;      // [R, L, 2 HV] of this pass
  void* pending_qkv;      // [8, L, C] of the pass before; its first R rows are overwritten
  void* pending_gates;    // [8, L, 2 HV]
  void* windows;          // [L, C, 3], oldest input first
  const std::int32_t* num_accepted;   // in device memory: pending rows that count, 0 to 8
  std::int64_t projected_row_stride;  // in elements, as all distances here
  std::int64_t projected_layer_stride;
  std::int64_t gates_row_stride;
  std::int64_t gates_layer_stride;
  std::int64_t pending_row_stride;
  std::int64_t pending_layer_stride;
  std::int64_t pending_gates_row_stride;
  std::int64_t pending_gates_layer_stride;
  std::int64_t layers;
  std::int64_t channels;       // C, even
  std::int64_t gate_channels;  // 2 HV
  std::int64_t rows;           // R, 1 to 8
  int device;
};

// window <- the last 3 of (window, accepted pending rows); pending <- the rows of this pass.
//
// Enqueues one kernel and returns: no allocation, no synchronisation, legal under stream capture.
Status gdn_keep(const GdnKeepParams& params, void* stream);

}  // namespace bytebound
