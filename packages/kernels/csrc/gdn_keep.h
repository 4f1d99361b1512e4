// What moves on in the Gated DeltaNet layers between two passes, when the recurrent state has
// already: the conv windows take in the accepted rows, and the rows of this pass become pending.
#pragma once

#include <cstdint>

#include "status.h"

namespace bytebound {

// L layers; channels of 16 bits, addresses and distances multiples of 4 bytes, of updates of 16.
struct GdnKeepParams {
  const void* projected;   // [R, L, C] of this pass: the channels before the convolution
  const float* updates;    // [R, L, W] of this pass, W = gdn_updates_width()
  void* pending_qkv;       // [8, L, C] of the pass before; its first R rows are overwritten
  float* pending_updates;  // [8, L, W]
  void* windows;           // [L, C, 3], oldest input first
  const std::int32_t* num_accepted;   // in device memory: pending rows that count, 0 to 8
  std::int64_t projected_row_stride;  // in elements, as all distances here
  std::int64_t projected_layer_stride;
  std::int64_t updates_row_stride;
  std::int64_t updates_layer_stride;
  std::int64_t pending_row_stride;
  std::int64_t pending_layer_stride;
  std::int64_t pending_updates_row_stride;
  std::int64_t pending_updates_layer_stride;
  std::int64_t layers;
  std::int64_t channels;  // C, even
  std::int64_t width;     // W, a multiple of 4
  std::int64_t rows;      // R, 1 to 8
  int device;
};

// window <- the last 3 of (window, accepted pending rows); pending <- the rows of this pass.
//
// Enqueues one kernel and returns: no allocation, no synchronisation, legal under stream capture.
Status gdn_keep(const GdnKeepParams& params, void* stream);

}  // namespace bytebound
