// Seeded draws from logits with temperature, top_k, top_p and min_p. Pointers, sizes and a stream.
#pragma once

#include <cstdint>

#include "status.h"

namespace bytebound {

// The float64 words of SampleParams::settings.
constexpr int kSampleTemperature = 0;  // 0 is greedy
constexpr int kSampleTopK = 1;         // a whole number; 0, or N and more, keeps all
constexpr int kSampleTopP = 2;         // above 0; 1 keeps all
constexpr int kSampleMinP = 3;         // 0 keeps all

struct SampleParams {
  const float* logits;           // [R, N], row_stride elements from row to row
  const double* settings;        // [4]
  const std::int64_t* seed;      // [1]
  const std::int32_t* position;  // [1]: row r draws with the number of position + offset + r
  std::int32_t* out;             // [R]
  double* weights;               // [R, N], or null
  double* totals;                // [R], or null
  void* workspace;               // sample_workspace_bytes(R, N); all zero before the first call
  std::int64_t rows;             // R, 0 to 65535
  std::int64_t n;                // N, 1 to 2^22
  std::int64_t row_stride;       // in elements
  std::int64_t position_offset;
  int purpose;      // Purpose in cuda/philox.cuh
  bool with_top_k;  // whether settings may ask for top_k; false saves three launches
  bool with_top_p;  // whether settings may ask for top_p; false saves three launches
  int device;       // the device that owns the pointers
};

std::int64_t sample_workspace_bytes(std::int64_t rows, std::int64_t n);

// weight(i) = exp((logits[r, i] - max_i) / temperature) in float64, 0 for an id that top_k, then
// top_p, then min_p drops; out[r] = the id at which the running sum of weights in id order passes
// uniform(seed, position + offset + r, purpose) * total. The weights are written where they are
// asked for. out[r] is -1, and weights and total are NaN, where the row's maximum is NaN or
// infinite.
//
// Enqueues 2 to 9 kernels on `stream` and returns: no allocation, no synchronisation, legal under
// stream capture.
Status sample(const SampleParams& params, void* stream);

}  // namespace bytebound
